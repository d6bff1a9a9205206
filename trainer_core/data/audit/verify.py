"""`data verify`: everything a data line has on disk, compared with what its records say. Changes nothing.

All problems are collected; a line without one can be trained, rebuilt and continued. Takes no lock, so it can
run beside a preparer: files that vanish meanwhile because their cycle is deleted are no problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer_core.data.audit.verify_records import check_calibration, check_recipe, check_stream
from trainer_core.data.audit.verify_sources import source_problems
from trainer_core.data.files.listing import HASHES_SUFFIX
from trainer_core.data.heldout.streams import read_heldout, record_path
from trainer_core.data.heldout.validation import load_rows, pinned_lengths, rows_digests
from trainer_core.data.plan.consumer import read_consumer
from trainer_core.data.plan.manifest import Manifest, read_cycle_manifest
from trainer_core.data.plan.state import PlanState
from trainer_core.data.plan.state_file import current_state, planned_cycles
from trainer_core.data.records import damage_named
from trainer_core.data.sources import DataLine, load_data_line
from trainer_core.data.tokens.encode import Encoder, check_library, read_tokenizer
from trainer_core.data.tokens.fingerprints import check_sample, hashes_path
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.data.tokens.shards import hash_shard
from trainer_core.errors import NstrainError, Refused
from trainer_core.line.files import canonical_json, iterate_jsonl
from trainer_core.line.paths import DataPaths


@dataclass(kw_only=True)
class Verified:
    """What was compared and what is wrong."""

    work: str
    """Folder of the data line."""
    checked: Counter[str] = field(default_factory=Counter)
    """Things compared, by kind."""
    problems: list[str] = field(default_factory=list)
    """Everything that is not as recorded, with its way out."""
    notes: list[str] = field(default_factory=list)
    """What mends itself."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "work": self.work,
            "ok": self.ok,
            "checked": dict(self.checked),
            "problems": self.problems,
            "notes": self.notes,
        }

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.checked.items())
        head = f"{self.work}: {counts} compared; " + (
            "all as recorded" if self.ok else f"{len(self.problems)} problem(s)"
        )
        return "\n".join([head, *(f"  {text}" for text in (*self.problems, *self.notes))])

    @contextmanager
    def checking(self, kind: str) -> Iterator[None]:
        """Count one comparison; what it refuses or cannot read becomes a problem."""
        self.checked[kind] += 1
        try:
            yield
        except NstrainError as error:
            self.problems += error.problems if isinstance(error, Refused) else [str(error)]
        except OSError as error:
            self.problems.append(f"{error.filename}: cannot be read ({error.strerror})")


def verify_data_line(
    work: Path, *, sources: bool = False, progress: Callable[[str], None] = lambda message: None
) -> Verified:
    """Compare a data line with its records; with `sources` also every file of its folders and hubs."""
    paths = DataPaths(Path(work))
    found = Verified(work=str(paths.root))
    with found.checking("data lines"):
        line = load_data_line(paths.root)
        _records(paths, line, found)
        _manifests(paths, line, found, progress)
        _state(paths, line, found)
        _open_files(paths, line, found)
        _heldout(paths, line, found)
        if sources:
            for spec in line.sources:
                progress(f"{spec.name}: comparing {len(spec.files)} files")
                found.checked["source files"] += len(spec.files)
                found.problems += source_problems(paths, line, spec)
    found.problems = list(dict.fromkeys(found.problems))
    return found


def _records(paths: DataPaths, line: DataLine, found: Verified) -> None:
    with found.checking("calibrations"):
        check_calibration(paths, line)
    with found.checking("recipes"):
        check_recipe(paths, line)
    with found.checking("tokenizers"):
        check_library(line.tokenizer)
        data = read_tokenizer(line.tokenizer)
        for markers, digest in {(spec.markers, spec.encode_sha256) for spec in line.sources}:
            if (made := Encoder(data, markers=markers, eos_id=line.eos_id).digest) != digest:
                raise Refused(
                    f"{line.tokenizer.path}: its encode-only copy for the markers {list(markers)} is {made}, "
                    f"{paths.data} has {digest}; use the nstrain version that made the data line"
                )
    if paths.consumer.exists():
        with found.checking("consumer records"):
            read_consumer(paths.root)
    _hashes(paths, line, found)


def _hashes(paths: DataPaths, line: DataLine, found: Verified) -> None:
    """Files of sampled hashes have their form, and belong to pinned files."""
    pinned = {hashes_path(paths, spec.name, file.path) for spec in line.sources for file in spec.files}
    for path in sorted(filter(Path.is_file, paths.hashes.rglob("*" + HASHES_SUFFIX))):
        with found.checking("files of hashes"):
            if path not in pinned:
                raise Refused(f"{path}: belongs to no pinned file; delete it")
            check_sample(path)


def _manifests(paths: DataPaths, line: DataLine, found: Verified, progress: Callable[[str], None]) -> None:
    """Every manifest, its place in the chain of states, and the shards of those that are on disk."""
    with found.checking("lists of manifests"):
        planned_cycles(paths)
    published = _published(paths)
    before: Manifest | None = None
    for path in sorted(paths.manifests.glob("*.json")):
        if not path.stem.isdecimal():
            continue
        cycle = int(path.stem)
        progress(f"cycle {cycle}")
        manifest: Manifest | None = None
        with found.checking("manifests"):
            manifest = read_cycle_manifest(paths, cycle, line=line)
            _check_manifest(path, manifest, before if before and before.cycle == cycle - 1 else None)
            if (logged := published.get(cycle, manifest.sha256)) != manifest.sha256:
                raise Refused(
                    f"{path}: sha256 is {manifest.sha256}, it was published as {logged}; "
                    "restore it from a backup"
                )
        if manifest is not None:
            _shards(paths, manifest, found)
        before = manifest
    for folder in sorted(paths.cycles.glob("*")):
        if folder.name.isdecimal() and not paths.manifest(int(folder.name)).exists():
            found.notes.append(f"{folder}: has no manifest yet; the preparer makes it again")


def _published(paths: DataPaths) -> dict[int, str]:
    """Digests of the manifests as they were first published: nothing in them may ever change."""
    found: dict[int, str] = {}
    for row in iterate_jsonl(paths.cycles_log):
        cycle, digest = row.get("cycle"), row.get("manifest_sha256")
        if row.get("kind") == "published" and isinstance(cycle, int) and isinstance(digest, str):
            found.setdefault(cycle, digest)
    return found


def _check_manifest(path: Path, manifest: Manifest, before: Manifest | None) -> None:
    """Its bytes, its order of rows, and that it begins where the one before ended."""
    value = manifest.value
    problems: list[str] = []
    if path.read_bytes() != canonical_json(dict(value)):
        problems.append(f"{path}: is not in canonical form: it was written by something else")
    for part in range(len(manifest.parts)):
        try:
            with damage_named(path, "restore it from a backup"):
                manifest.order(part)
        except Refused as refused:
            problems += [f"{path}: {problem}" for problem in refused.problems]
    state = value["state_before"]
    if PlanState.from_json(state["values"]).digest() != state["digest"]:
        problems.append(f"{path}: the digest of state_before does not fit its values")
    begins = PlanState.from_json(state["values"])
    if manifest.cycle == 0 and begins != PlanState():
        problems.append(f"{path}: cycle 0 does not begin at the beginning")
    if before is not None and begins.digest() != before.value["state_after"]["digest"]:
        problems.append(
            f"{path}: begins at the state {begins.digest()}, and cycle {before.cycle} ended at "
            f"{before.value['state_after']['digest']}"
        )
    if value["start_token"] != begins.start_token:
        problems.append(
            f"{path}: start_token {value['start_token']:,}, its state says {begins.start_token:,}"
        )
    if any(value["guard"]["control_ids"].values()):
        problems.append(f"{path}: control tokens came out of text: {value['guard']['control_ids']}")
    if problems:
        raise Refused([f"{problem}; restore it from a backup" for problem in problems])


def _shards(paths: DataPaths, manifest: Manifest, found: Verified) -> None:
    folder = paths.cycle(manifest.cycle)
    if not folder.exists():
        return
    again = (
        f"`nstrain data delete --work {paths.root} --cycle {manifest.cycle}`, then `nstrain data prepare` "
        "makes the same shards again"
    )
    for record in (shard for shards in manifest.shards() for shard in shards):
        path = folder / record["path"]
        with found.checking("shards"):
            try:
                digest = hash_shard(path)
            except FileNotFoundError:
                if not folder.exists():  # deleted meanwhile
                    return
                raise Refused(f"{path}: this shard is missing; {again}") from None
            if digest != record["blake2b"]:
                raise Refused(f"{path}: blake2b is {digest}, its manifest says {record['blake2b']}; {again}")


def _state(paths: DataPaths, line: DataLine, found: Verified) -> None:
    with found.checking("states"):
        state = current_state(paths, line=line)
        planned = planned_cycles(paths)
        if planned and state != (after := read_cycle_manifest(paths, planned - 1).state_after()):
            raise Refused(
                f"{paths.state}: is the state {state.digest()}, cycle {planned - 1} ended at "
                f"{after.digest()}; delete it, the manifests hold the state as well"
            )


def _open_files(paths: DataPaths, line: DataLine, found: Verified) -> None:
    """Tokenized files can be read, are whole, and hold the documents that the state counts on."""
    files = OpenFiles(paths.root, line)
    needed: dict[tuple[str, str], int] = {}
    with found.checking("lists of open files"):
        for name, source in current_state(paths, line=line).sources.items():
            for stratum in source.strata.values():
                needed |= {(name, entry.path): entry.next_doc for entry in stratum.open}
    pinned = {(spec.name, file.path) for spec in line.sources for file in spec.files}
    for path in sorted(paths.open.rglob("*.safetensors")):
        if not path.is_file():
            continue  # a folder of a source may have any name
        owner, _, below = path.relative_to(paths.open).as_posix().partition("/")
        key = (owner, below.removesuffix(".safetensors"))
        with found.checking("open files"):
            if key not in pinned:
                raise Refused(f"{path}: belongs to no pinned file; delete it")
            shard = files.shard(*key)
            if shard is None:
                found.notes.append(f"{path}: made from other input; it is made again when it is needed")
            elif (int(shard.doc_ends[-1]) if len(shard.doc_ends) else 0) != len(shard.tokens):
                raise Refused(
                    f"{path}: its documents do not end with its tokens; delete it, it is made again"
                )
            elif needed.get(key, 0) > len(shard.doc_ends):
                raise Refused(f"{path}: has fewer documents than {paths.state} says; delete it")


def _heldout(paths: DataPaths, line: DataLine, found: Verified) -> None:
    if not record_path(paths).exists():
        found.notes.append(f"{paths.heldout}: no held-out text is collected yet (`nstrain data val`)")
        return
    with found.checking("held-out records"):
        record = read_heldout(paths, line)
        for spec in line.sources:
            for stratum in spec.strata:
                with found.checking("held-out streams"):
                    check_stream(paths, record, spec.name, stratum.name)
    with found.checking("lists of validation rows"):
        rows_digests(paths.root)
    for length in pinned_lengths(paths):
        with found.checking("validation rows"):
            load_rows(paths.root, length)
