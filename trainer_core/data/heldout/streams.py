"""Held-out token streams of a data line, one per stratum: made once, and made again when they are damaged.

`make_streams` walks each stratum's files in the order in which cycles open them and keeps the held-out
documents up to a bounded number of tokens, out of a bounded number of bytes. heldout.json records every
stream's hash as soon as it is made, so that an interrupted walk goes on, and what each source's streams
depend on, so that new sources change nothing of the others. Readers compare the hash before they use a
stream. Held-out text never enters a cycle (it is decided before anything is encoded).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.plan.streams import file_order
from trainer_core.data.records import read_record, refuse_other
from trainer_core.data.sources import DataLine, SourceSpec
from trainer_core.data.text.documents import Document, document_text
from trainer_core.data.text.read import iter_documents
from trainer_core.data.tokens.holdout import Holdout
from trainer_core.data.tokens.shards import Shard, hash_shard, read_shard, write_shard
from trainer_core.errors import Refused
from trainer_core.line.files import publish, sha256_json, write_json
from trainer_core.line.paths import DataPaths

if TYPE_CHECKING:  # readers of rows need no tokenizer
    from trainer_core.data.tokens.open_files import OpenFiles

FORMAT = "heldout/2"
WALKED_BYTES = 16 << 30
"""Bytes of files after which a stratum's walk ends with what it has: a bound for tiny fractions."""
_BATCH = 64
_LONGEST_NAME = 160

Progress = Callable[[str], None]
"""Takes a line for people."""


@dataclass(frozen=True, kw_only=True)
class StreamRecord:
    """One stratum's stream."""

    documents: int
    """Documents in it."""
    tokens: int
    """Their tokens, ends of documents included."""
    files: int
    """Source files that were read for it."""
    blake2b: str
    """Hash of the stream's file."""


@dataclass(frozen=True, kw_only=True)
class HeldoutRecord:
    """All of heldout.json."""

    tokens_per_stratum: int
    """Tokens after which a stratum's collection ends."""
    made_from: dict[str, str]
    """Digest of what a source's streams depend on, by source."""
    sources: dict[str, dict[str, StreamRecord]]
    """Streams by source and stratum."""

    def to_json(self) -> dict[str, Any]:
        """The content of heldout.json."""
        return {"format": FORMAT, **asdict(self)}


def record_path(paths: DataPaths) -> Path:
    """The record of all streams."""
    return paths.heldout / "heldout.json"


def stream_path(paths: DataPaths, source: str, stratum: str) -> Path:
    """Held-out stream of a stratum; a stratum may be a file path, so its name is quoted, and cut if long."""
    name = quote(stratum, safe="")
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(stratum.encode('utf-8')).hexdigest()[:32]}"
    return paths.heldout / source / f"{name}.safetensors"


def made_from(line: DataLine, spec: SourceSpec) -> str:
    """Digest of everything that decides a token of a source's streams; other sources are no part of it."""
    return sha256_json(
        {
            "source": spec.name,
            "identity": spec.identity,
            "heldout": spec.heldout,
            "text": spec.text.to_json(),
            "markers": list(spec.markers),
            "files": [[file.path, file.size, file.digest, file.stratum] for file in spec.files],
            "encode_sha256": spec.encode_sha256,
            "tokenizer_sha256": line.tokenizer.sha256,
            "library_version": line.tokenizer.library_version,
            "eos_id": line.eos_id,
            "token_dtype": line.token_dtype,
            "seed": line.seed,
        }
    )


def read_heldout(paths: DataPaths, line: DataLine) -> HeldoutRecord:
    """The record of all the line's streams. Raises Refused when some are missing or of another data line."""
    path, command = record_path(paths), f"`nstrain data val --work {paths.root}`"
    if not path.exists():
        raise Refused(f"{paths.root}: no held-out text is collected; run {command} first")
    record = _recorded(paths, line)
    missing = [
        f"source {spec.name}"
        for spec in line.sources
        if {stratum.name for stratum in spec.strata} != record.sources.get(spec.name, {}).keys()
    ]
    if missing:
        raise Refused(f"{path}: the held-out text of {', '.join(missing)} is not collected; run {command}")
    return record


def make_streams(
    paths: DataPaths,
    line: DataLine,
    files: OpenFiles,
    tokens_per_stratum: int,
    *,
    new: Collection[str] = (),
    progress: Progress = lambda message: None,
) -> HeldoutRecord:
    """Collect the streams that are missing or damaged. The caller holds the line's lock.

    `new` are sources that the data line does not have yet: what a cut-off append may have left of them counts
    only if it is the same text.
    """
    record = HeldoutRecord(tokens_per_stratum=tokens_per_stratum, made_from={}, sources={})
    if record_path(paths).exists():
        record = _recorded(paths, line, new=new)
    for spec in line.sources:
        record.made_from[spec.name] = made_from(line, spec)
        streams = record.sources.setdefault(spec.name, {})
        for stratum in (stratum.name for stratum in spec.strata):
            known = streams.get(stratum)
            if known is not None and _is_whole(paths, spec.name, stratum, known):
                continue
            made = _make_stream(paths, line, spec, stratum, files, record.tokens_per_stratum)
            if known is not None and made != known:
                raise Refused(
                    f"{stream_path(paths, spec.name, stratum)}: made again, this held-out stream is "
                    f"{made.blake2b}, {record_path(paths)} says {known.blake2b}; restore {paths.heldout} "
                    "from a backup"
                )
            streams[stratum] = made
            write_json(record_path(paths), record.to_json())
            progress(
                f"{spec.name}, {stratum}: {made.documents:,} held-out documents, {made.tokens:,} tokens "
                f"out of {made.files} files"
            )
    return record


def open_stream(paths: DataPaths, record: HeldoutRecord, source: str, stratum: str) -> Shard:
    """A stream, compared with its hash."""
    path = stream_path(paths, source, stratum)
    way_out = f"run `nstrain data val --work {paths.root}`: it collects the same text again"
    if not path.exists():
        raise Refused(f"{path}: this held-out stream does not exist; {way_out}")
    if hash_shard(path) != record.sources[source][stratum].blake2b:
        raise Refused(f"{path}: this held-out stream is damaged; {way_out}")
    return read_shard(path, way_out=way_out)


def _recorded(paths: DataPaths, line: DataLine, *, new: Collection[str] = ()) -> HeldoutRecord:
    """What is recorded of the line's sources. Raises Refused when it was made from anything else.

    Sources that the line does not have are left out: an append that did not end left them.
    """
    path = record_path(paths)
    again = f"delete it and run `nstrain data val --work {paths.root}`: it collects the same text again"
    record = read_record(path, FORMAT, _from_json, way_out=again)
    wanted = {spec.name: made_from(line, spec) for spec in line.sources}
    same = [name for name, digest in wanted.items() if record.made_from.get(name) == digest]
    others = [name for name in record.made_from if name in wanted and name not in (*same, *new)]
    if others:
        raise Refused(
            f"{path}: the text of {', '.join(others)} was collected from other files, or by other settings, "
            f"than {paths.data} has now; put back the {paths.data.name} that it was collected with"
        )
    strata = {spec.name: {stratum.name for stratum in spec.strata} for spec in line.sources}
    if any(not record.sources.get(name, {}).keys() <= strata[name] for name in same):
        raise Refused(f"{path}: its strata are not those of the data line; {again}")
    return HeldoutRecord(
        tokens_per_stratum=record.tokens_per_stratum,
        made_from={name: wanted[name] for name in same},
        sources={name: dict(record.sources.get(name, {})) for name in same},
    )


def _is_whole(paths: DataPaths, source: str, stratum: str, record: StreamRecord) -> bool:
    path = stream_path(paths, source, stratum)
    return path.exists() and hash_shard(path) == record.blake2b


def _make_stream(
    paths: DataPaths, line: DataLine, spec: SourceSpec, stratum: str, files: OpenFiles, tokens: int
) -> StreamRecord:
    """Write one stratum's held-out stream; its record."""
    documents: list[NDArray[Any]] = []
    held = num_files = walked = 0
    order = file_order(line, spec.name, stratum) if spec.heldout else ()
    for path in order:
        if held >= tokens or walked >= WALKED_BYTES:
            break
        num_files += 1
        walked += files.sources.pinned(spec.name, path).size
        was_here = files.sources.is_held(spec.name, path)
        with files.sources.reading(spec.name, path) as origin:
            for ids in _heldout_ids(spec, origin, path, files):
                documents.append(ids)
                held += len(ids)
                if held >= tokens:
                    break
        if not was_here:  # one download at a time on disk, and none that somebody else fetched is deleted
            files.sources.discard(spec.name, path)
    target = stream_path(paths, spec.name, stratum)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    digest = write_shard(
        part,
        documents,
        np.cumsum([len(ids) for ids in documents], dtype=np.int64).astype(np.uint64),
        num_tokens=held,
        token_type=line.token_dtype,
    )
    publish(part, target)
    return StreamRecord(documents=len(documents), tokens=held, files=num_files, blake2b=digest)


def _heldout_ids(spec: SourceSpec, origin: Path, path: str, files: OpenFiles) -> Iterator[NDArray[Any]]:
    """The held-out documents of a file, encoded."""
    encoder = files.encoder(spec.name)
    holdout = Holdout(identity=spec.identity, fraction=spec.heldout)
    batch: list[Document] = []
    for document in iter_documents(origin, spec.text, markers=spec.markers):
        if holdout.holds(document_text(document).encode("utf-8")):
            batch.append(document)
        if len(batch) == _BATCH:
            yield from encoder.encode(batch, where=path)
            batch = []
    if batch:
        yield from encoder.encode(batch, where=path)


def _from_json(value: Mapping[str, Any]) -> HeldoutRecord:
    record = HeldoutRecord(
        tokens_per_stratum=value["tokens_per_stratum"],
        made_from=dict(value["made_from"]),
        sources={
            source: {stratum: StreamRecord(**entry) for stratum, entry in strata.items()}
            for source, strata in value["sources"].items()
        },
    )
    refuse_other(value, record.to_json())
    return record
