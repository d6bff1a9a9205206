"""Preparing a cycle: whole, idempotent, repaired after a kill anywhere, and clear when it cannot go on."""

import errno
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tools.faults import run_killed, trace
from tests.tools.tiny_data import disk_line, published_bytes, register
from trainer_core.data.heldout.validation import make_heldout
from trainer_core.data.plan.manifest import read_manifest
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.sources import load_data_line
from trainer_core.data.tokens.holdout import is_held_out
from trainer_core.data.tokens.shards import hash_shard, read_shard
from trainer_core.errors import DataUsedUp, DiskFull, Refused
from trainer_core.line.files import read_jsonl
from trainer_core.line.paths import DataPaths


def prepare(work: Path, *cycles: int) -> None:
    """Prepare cycles as the drivers do."""
    preparer = CyclePreparer(work)
    for cycle in cycles:
        preparer.download(cycle)
        preparer.tokenize(cycle)


def kinds(work: Path, cycle: int) -> list[str]:
    rows = read_jsonl(DataPaths(work).cycles_log)
    return [row["kind"] for row in rows if row["cycle"] == cycle]


def test_a_cycle_from_sources_to_shards_and_away(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    paths, preparer = DataPaths(work), CyclePreparer(work)
    needed = preparer.needed(0)
    assert {ref.source for ref in needed} == {"code", "prose"} and all(ref.size > 0 for ref in needed)
    assert not preparer.published(0) and not preparer.has_manifest(0)
    assert preparer.download(0)["files"] == len(needed)
    summary = preparer.tokenize(0)
    assert preparer.published(0) and preparer.needed(0) == []
    assert (summary["rows"], summary["updates"]) == (120, 15)
    manifest = read_manifest(paths.manifest(0))
    for records in manifest.shards():
        for record in records:
            shard = paths.cycle(0) / record["path"]
            assert hash_shard(shard) == record["blake2b"]
            assert len(read_shard(shard).tokens) == record["tokens"]
    assert kinds(work, 0) == ["downloaded", "tokenize_started", "planned", "tokenized", "published"]
    events = [row["kind"] for row in read_jsonl(paths.events)]
    assert events == kinds(work, 0)
    assert preparer.delete_cycle(0) is True
    assert preparer.delete_cycle(0) is False
    assert preparer.has_manifest(0) and not preparer.published(0)
    assert kinds(work, 0)[-2:] == ["consumed", "deleted"]
    assert not list(paths.cycles.iterdir())


def test_repeated_calls_change_nothing(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    prepare(work, 0, 1)
    before, logged = published_bytes(work), kinds(work, 0) + kinds(work, 1)
    prepare(work, 0, 1)
    assert published_bytes(work) == before
    assert kinds(work, 0) + kinds(work, 1) == logged


def test_the_same_line_elsewhere_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = disk_line(tmp_path / "a"), disk_line(tmp_path / "b")
    prepare(one, 0, 1, 2)
    prepare(two, 0, 1, 2)
    assert {k: v for k, v in published_bytes(one).items() if k != "data.json"} == {
        k: v for k, v in published_bytes(two).items() if k != "data.json"
    }


def test_every_training_document_is_trained_once_and_held_out_ones_never(tmp_path: Path) -> None:
    work = disk_line(tmp_path, heldout=0.2, cycle_tokens=1500)
    cycles = range(4)
    prepare(work, *cycles)
    line, paths = load_data_line(work), DataPaths(work)
    for spec in line.sources:
        texts: list[bytes] = []
        stream = np.empty(0, dtype=np.uint16)
        for cycle in cycles:
            for records in read_manifest(paths.manifest(cycle)).shards():
                for record in records:
                    if record["source"] == spec.name:
                        tokens = read_shard(paths.cycle(cycle) / record["path"]).tokens
                        if len(stream):
                            assert stream[-1] == tokens[0], "one token of overlap between windows"
                        stream = np.concatenate([stream, tokens[1 if len(stream) else 0 :]])
        text = CyclePreparer(work).files.encoder(spec.name)
        ends = np.flatnonzero(stream == line.eos_id)
        starts = np.concatenate([[0], ends[:-1] + 1])
        decoded = [bytes_of(text, stream[a:b]) for a, b in zip(starts, ends, strict=True)]
        texts = [document.decode() for document in decoded]
        assert len(texts) > 20
        assert max(Counter(texts).values()) == 1
        corpus = {
            row["text"]
            for file in spec.files
            for row in map(json.loads, (Path(spec.folder) / file.path).read_text().splitlines())
        }
        assert set(texts) <= corpus
        assert not any(is_held_out(t, identity=spec.identity, fraction=0.2) for t in texts)
        taken = {
            p["path"] for c in cycles for p in read_manifest(paths.manifest(c)).value["pieces"][spec.name]
        }
        heldout = sum(
            piece["heldout_docs"]
            for cycle in cycles
            for piece in read_manifest(paths.manifest(cycle)).value["pieces"][spec.name]
        )
        expected = sum(
            is_held_out(json.loads(row)["text"], identity=spec.identity, fraction=0.2)
            for path in taken
            for row in (Path(spec.folder) / path).read_text().splitlines()
            if json.loads(row)["text"]
        )
        assert heldout == expected > 0


def bytes_of(encoder: Any, ids: np.ndarray) -> bytes:
    """Text of byte tokens: the alphabet's characters stand for bytes."""
    return str(encoder._tokenizer.decode(ids.tolist(), skip_special_tokens=False)).encode()


def test_a_kill_at_any_file_operation_is_repaired(tmp_path: Path) -> None:
    base = disk_line(tmp_path / "base", shares={"code": 1}, cycle_tokens=1500, docs=15, segments=1)
    cycle = 0
    while cycle == 0 or not CyclePreparer(base).needed(cycle):  # the case must tokenize as well
        prepare(base, cycle)
        cycle += 1
    untouched = published_bytes(base)

    def work_on(work: Path) -> None:
        preparer = CyclePreparer(work)
        preparer.download(cycle)
        preparer.tokenize(cycle)
        preparer.delete_cycle(cycle - 1)

    whole = tmp_path / "whole"
    shutil.copytree(base, whole)
    work_on(whole)
    expected = published_bytes(whole)
    assert expected != untouched
    operation, killed = 0, 0
    while True:
        copy = tmp_path / "copy"
        shutil.copytree(base, copy)
        if not run_killed(lambda: work_on(copy), operation):  # noqa: B023
            break
        killed += 1
        work_on(copy)
        assert published_bytes(copy) == expected, f"killed before file operation {operation}"
        leftovers = [
            p.name for p in copy.rglob("*") if p.name.endswith((".part", ".spool", ".tmp", ".deleted"))
        ]
        assert leftovers == [], f"killed before file operation {operation}"
        rows = kinds(copy, cycle)
        assert rows[-1] == "published" and "tokenize_started" in rows
        shutil.rmtree(copy)
        operation += 1
    assert killed > 50, "the case must have this many file operations"


def test_published_files_are_written_synced_renamed_and_their_folder_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = disk_line(tmp_path)
    paths = DataPaths(work)
    CyclePreparer(work).download(0)
    rows = trace(lambda: CyclePreparer(work).tokenize(0), monkeypatch)
    operations = [(name, path) for name, path, _ in rows]

    def at(name: str, path: Path, after: int = 0) -> int:
        return operations.index((name, str(path)), after)

    part, folder = paths.cycles / "000000.part", paths.cycle(0)
    renamed = at("rename", part)
    assert at("fsync", paths.cycles) == renamed + 1
    for records in read_manifest(paths.manifest(0)).shards():
        for record in records:
            shard = part / record["path"]
            opened, synced = at("open", shard), at("fsync", shard)
            assert opened < synced < at("fsync", shard.parent) < at("fsync", part) < renamed
            size = rows[synced][2]
            assert size == (folder / record["path"]).stat().st_size, "all bytes are written before the fsync"
    temporary = [path for name, path in operations if name == "replace" and "manifests" in path]
    replaced = at("replace", Path(temporary[0]))
    assert renamed < at("open", Path(temporary[0])) < at("fsync", Path(temporary[0])) < replaced
    assert at("fsync", paths.manifests, replaced) == replaced + 1
    state = next(i for i, (name, path) in enumerate(operations) if name == "replace" and ".state" in path)
    assert replaced < state, "shards, then the manifest, then the state"


def test_a_cycle_is_rebuilt_from_manifest_and_sources_alone(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    paths = DataPaths(work)
    prepare(work, 0, 1, 2)
    expected = published_bytes(work)
    for folder in (paths.cycles, paths.open):
        shutil.rmtree(folder)
    for path in (paths.state, paths.cycles_log, paths.events, paths.consumer):
        path.unlink()
    preparer = CyclePreparer(work)
    preparer.rebuild(1, tmp_path / "out")
    for records in read_manifest(paths.manifest(1)).shards():
        for record in records:
            assert hash_shard(tmp_path / "out" / record["path"]) == record["blake2b"]
    # The verbs of a rollback: the cycles come back in place, and the line goes on as if nothing had happened.
    for cycle in (0, 1, 2):
        preparer.download(cycle)
        preparer.tokenize(cycle)
        assert preparer.published(cycle)
    after = published_bytes(work)
    assert {k: v for k, v in after.items() if not k.startswith("open/")} == {
        k: v for k, v in expected.items() if not k.startswith("open/")
    }
    register(work)
    prepare(work, 3)
    whole = disk_line(tmp_path / "whole")
    prepare(whole, 0, 1, 2, 3)
    assert paths.manifest(3).read_bytes() == DataPaths(whole).manifest(3).read_bytes()


def test_a_rebuild_from_other_text_is_refused(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    prepare(work, 0)
    line = load_data_line(work)
    file = (
        Path(line.source("code").folder)
        / read_manifest(DataPaths(work).manifest(0)).value["pieces"]["code"][0]["path"]
    )
    shutil.rmtree(DataPaths(work).open)
    shutil.rmtree(DataPaths(work).cycles)
    file.write_text(file.read_text().replace("a", "b", 1))
    with pytest.raises(Refused, match="sha256"):
        CyclePreparer(work).tokenize(0)


def test_another_tokenizers_version_is_refused_where_it_would_encode(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    installed = load_data_line(work).tokenizer.library_version
    prepare(work, 0)
    assert read_manifest(DataPaths(work).manifest(0)).value["tokenizer"]["library_version"] == installed
    other = disk_line(tmp_path / "other")
    value = json.loads(DataPaths(other).data.read_text())
    value["tokenizer"]["library_version"] = "0.0.1"
    DataPaths(other).data.write_text(json.dumps(value))
    for call in (lambda: CyclePreparer(other).tokenize(0), lambda: make_heldout(other)):
        with pytest.raises(Refused) as caught:
            call()
        assert f"tokenizers {installed} is installed" in str(caught.value)
        assert "tokenizers==0.0.1" in str(caught.value) and "make a new data line" in str(caught.value)
    # Files that the other version tokenized do not count as tokenized for it.
    shutil.copytree(DataPaths(work).open, DataPaths(other).open, dirs_exist_ok=True)
    assert CyclePreparer(other).needed(0)


def test_lost_manifests_and_state_are_made_again_as_the_messages_say(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    paths = DataPaths(work)
    prepare(work, 0, 1, 2)
    expected = {k: v for k, v in published_bytes(work).items() if not k.startswith("open/")}
    for path in paths.manifests.iterdir():
        if path.name != "000000.json":
            path.unlink()
    with pytest.raises(Refused, match=r"prepare --work \S+ --cycle 1, then 2 \.\. 2 in order`") as caught:
        CyclePreparer(work).needed(3)
    assert f"delete {paths.state}" in str(caught.value)
    paths.state.unlink()
    prepare(work, 1, 2)
    assert {k: v for k, v in published_bytes(work).items() if not k.startswith("open/")} == expected
    paths.manifest(1).unlink()
    with pytest.raises(
        Refused, match=r"move state\.json and all manifests from cycle 1 on .* --cycle 1, then 2"
    ):
        CyclePreparer(work).needed(3)
    paths.state.unlink()
    paths.manifest(2).unlink()
    prepare(work, 1, 2)
    assert {k: v for k, v in published_bytes(work).items() if not k.startswith("open/")} == expected


def test_a_damaged_state_is_refused_and_deleting_it_is_enough(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    path = DataPaths(work).state
    prepare(work, 0)
    good = path.read_bytes()
    value = json.loads(good)
    for damaged in (
        "{",
        "[]",
        "{}",
        {"format": value["format"]},
        value | {"next_cycle": "1"},
        value | {"piece": 3},
    ):
        path.write_text(damaged if isinstance(damaged, str) else json.dumps(damaged))
        with pytest.raises(Refused, match=r"state\.json: .*; delete it, the manifests hold the state"):
            CyclePreparer(work).needed(1)
    path.unlink()
    prepare(work, 0)
    assert path.read_bytes() == good


def test_files_that_are_no_manifests_do_not_count(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    prepare(work, 0)
    for name in ("0old.json", "1.json", "notes.json"):
        (DataPaths(work).manifests / name).write_text("{}")
    prepare(work, 1)
    assert CyclePreparer(work).published(1)


def test_tokenized_files_leave_when_they_are_used_up(tmp_path: Path) -> None:
    work = disk_line(tmp_path, cycle_tokens=3000)
    prepare(work, 0, 1)
    state = json.loads(DataPaths(work).state.read_text())
    for source, progress in state["sources"].items():
        kept = {docs["path"] for docs in progress["head"]}
        for stratum in progress["strata"].values():
            kept |= {file["path"] for file in stratum["open"]}
        folder = DataPaths(work).open / source
        there = {
            p.relative_to(folder).as_posix().removesuffix(".safetensors")
            for p in folder.rglob("*.safetensors")
        }
        assert there == kept


def test_before_a_training_line_exists_nothing_is_planned(tmp_path: Path) -> None:
    work = disk_line(tmp_path, consumer=False)
    preparer = CyclePreparer(work)
    for call in (preparer.needed, preparer.download, preparer.tokenize):
        with pytest.raises(Refused, match="nstrain new"):
            call(0)
    register(work)
    assert preparer.needed(0)


def test_cycles_come_in_order(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    with pytest.raises(Refused, match="cycle 2 can only be prepared after cycle 1; the next one is 0"):
        CyclePreparer(work).tokenize(2)


def test_a_changed_or_missing_file_is_refused_with_both_hashes(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    preparer = CyclePreparer(work)
    first, second = preparer.needed(0)[:2]
    line = load_data_line(work)
    changed = Path(line.source(first.source).folder) / first.path
    changed.write_text(changed.read_text().replace("0", "9", 1))
    (Path(line.source(second.source).folder) / second.path).unlink()
    with pytest.raises(Refused) as caught:
        preparer.download(0)
    pinned = preparer.files.pinned(first.source, first.path).digest
    assert len(caught.value.problems) == 2
    assert str(changed) in caught.value.problems[0] and pinned in caught.value.problems[0]
    assert second.path in caught.value.problems[1] and "gone" in caught.value.problems[1]


def test_a_used_up_source_ends_with_its_own_error(tmp_path: Path) -> None:
    work = disk_line(tmp_path, files=1, docs=20, cycle_tokens=2000)
    preparer = CyclePreparer(work)
    with pytest.raises(DataUsedUp, match=r"cycle \d+, source \w+, stratum t\d: used up"):
        for cycle in range(20):
            preparer.download(cycle)
            preparer.tokenize(cycle)
    # What was published before stays.
    assert preparer.published(0)


@pytest.mark.parametrize("where", ["open/", "cycles/", "manifests/"])
def test_a_full_disk_loses_nothing_and_the_next_call_ends_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    work = disk_line(tmp_path / "line")
    whole = disk_line(tmp_path / "whole")
    prepare(work, 0)
    prepare(whole, 0, 1, 2)
    real_fsync = os.fsync

    def full(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if f"/{where}" in path and os.path.isfile(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull):
        prepare(work, 1, 2)
    monkeypatch.undo()
    assert CyclePreparer(work).published(0)
    assert not [p for p in work.rglob("*") if p.name.endswith((".part", ".spool", ".tmp"))]
    prepare(work, 1, 2)
    assert {k: v for k, v in published_bytes(work).items() if k != "data.json"} == {
        k: v for k, v in published_bytes(whole).items() if k != "data.json"
    }


def test_lost_manifests_are_named(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    prepare(work, 0, 1, 2)
    DataPaths(work).manifest(1).unlink()
    with pytest.raises(
        Refused, match=r"manifests of cycles \[1\] are missing; restore them from a backup, or"
    ):
        CyclePreparer(work).needed(3)


def test_files_without_a_trained_document_are_prepared_like_any_other(tmp_path: Path) -> None:
    """One document per file: where it is held out, the file is opened and gives nothing."""
    work = disk_line(tmp_path, cycle_tokens=256, heldout=0.5, files=60, docs=1, strata=1, segments=1)
    preparer = CyclePreparer(work)
    for cycle in range(2):
        preparer.download(cycle)
        preparer.tokenize(cycle)
        assert preparer.published(cycle)
    manifest = read_manifest(DataPaths(work).manifest(1))
    empty = [docs for docs in manifest.value["pieces"]["code"] if docs["doc_to"] == 0]
    assert empty, "no file of this line was held out whole"
