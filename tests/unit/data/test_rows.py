"""Rows for the training loop: pure, complete, in the planned order, and refused when that is not so."""

import gc
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.tools.tiny_data import ROW_LENGTH, disk_line, two_part_line
from trainer_core.data.plan.manifest import read_manifest, write_manifest
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.rows.line_rows import DataLineRows, Position, RowSource
from trainer_core.data.tokens.shards import read_shard
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data line with cycles 0 to 2 published; tests must not change it."""
    work = disk_line(tmp_path_factory.mktemp("rows"), segments=3)
    preparer = CyclePreparer(work)
    for cycle in range(3):
        preparer.tokenize(cycle)
    return work


def at(cycle: int, row: int) -> Position:
    return Position(cycle=cycle, part=0, row=row)


def test_a_data_line_is_a_row_source(line: Path) -> None:
    source: RowSource = DataLineRows(line)
    assert [source.ready(cycle) for cycle in range(4)] == [True, True, True, False]
    (part,) = source.parts(1)
    manifest = read_manifest(DataPaths(line).manifest(1))
    assert (part.row_length, part.num_rows, part.updates, part.start_token) == (16, 120, 15, 1920)
    assert part.manifest_sha256 == manifest.sha256
    assert part.order_digest == manifest.parts[0]["order_digest"]
    source.close()


def test_every_token_of_every_shard_is_a_target_once_in_four_ways_of_reading(line: Path) -> None:
    for cycle in range(3):
        expected = []
        for records in read_manifest(DataPaths(line).manifest(cycle)).shards():
            for record in records:
                tokens = read_shard(DataPaths(line).cycle(cycle) / record["path"]).tokens.astype(np.int64)
                expected += [tuple(tokens[i : i + 17]) for i in range(0, len(tokens) - 1, ROW_LENGTH)]
        whole = DataLineRows(line).rows(at(cycle, 0), 120)
        assert whole.ids.dtype == np.int64 and whole.ids.shape == (120, ROW_LENGTH + 1)
        assert sorted(map(tuple, whole.ids)) == sorted(expected)
        for size in (1, 8, 50, 119):
            source = DataLineRows(line)
            pieces = [source.rows(at(cycle, r), min(size, 120 - r)).ids for r in range(0, 120, size)]
            assert np.array_equal(np.concatenate(pieces), whole.ids)


def test_a_start_at_any_row_gives_the_same_remaining_rows(line: Path) -> None:
    whole = DataLineRows(line).rows(at(2, 0), 120).ids
    for row in range(120):
        assert np.array_equal(DataLineRows(line).rows(at(2, row), 120 - row).ids, whole[row:])


def test_two_parts_are_one_stream_read_in_two_row_lengths(tmp_path: Path) -> None:
    work = two_part_line(tmp_path)
    source = DataLineRows(work)
    assert [(part.row_length, part.num_rows) for part in source.parts(0)] == [(16, 64), (32, 28)]
    batches = [source.rows(Position(cycle=0, part=part, row=0), n) for part, n in ((0, 64), (1, 28))]
    targets = sorted(int(token) for batch in batches for token in batch.ids[:, 1:].ravel())
    manifest = read_manifest(DataPaths(work).manifest(0))
    stored: list[int] = []
    ends: dict[str, list[int]] = {}
    for segment, records in zip(manifest.value["segments"], manifest.shards(), strict=True):
        for record in records:
            tokens = read_shard(DataPaths(work).cycle(0) / record["path"]).tokens.tolist()
            if segment["first_row"] == 0 and segment["part"] == 1:
                assert tokens[0] == ends[record["source"]][-1], (
                    "the last target of one part, the context here"
                )
            ends[record["source"]] = tokens
            stored += tokens[1:]
    assert targets == sorted(stored)
    for part, rows in ((0, 64), (1, 28)):
        whole = batches[part].ids
        for row in range(rows):
            fresh = DataLineRows(work) if row % 16 == 0 else source
            rest = fresh.rows(Position(cycle=0, part=part, row=row), rows - row)
            assert np.array_equal(rest.ids, whole[row:])


def test_memory_is_used_again_only_when_nobody_holds_it(line: Path) -> None:
    source = DataLineRows(line)
    kept = source.rows(at(0, 0), 8).ids
    copy, part_of_it = kept.copy(), kept[2:4, 1:]
    del kept
    others = [source.rows(at(0, row), 8).ids for row in range(8, 40, 8)]
    assert not any(np.shares_memory(part_of_it, other) for other in others)
    assert np.array_equal(part_of_it, copy[2:4, 1:])
    places = {other.ctypes.data for other in others} | {part_of_it.base.ctypes.data}
    del others, part_of_it
    gc.collect()
    again = [source.rows(at(1, row), 8).ids for row in range(0, 40, 8)]
    assert {array.ctypes.data for array in again} == places
    assert source.rows(at(1, 0), 9).ids.shape == (9, 17)


def test_a_shard_that_shrinks_while_it_is_read_is_refused_not_fatal(line: Path, tmp_path: Path) -> None:
    work = tmp_path / "copy"
    shutil.copytree(line, work)
    source = DataLineRows(work)
    before = source.rows(at(0, 0), 40).ids.copy()
    record = read_manifest(DataPaths(work).manifest(0)).shards()[0][0]
    shard = DataPaths(work).cycle(0) / record["path"]
    content = shard.read_bytes()
    os.truncate(shard, 100)
    with pytest.raises(Refused, match=r"code\.safetensors: not a complete shard; run `nstrain data delete"):
        source.rows(at(0, 0), 40)
    shard.write_bytes(content[:-2] + b"\0\0")
    with pytest.raises(Refused, match=r"code\.safetensors: damaged: blake2b"):
        source.rows(at(0, 0), 40)
    shard.unlink()
    with pytest.raises(Refused, match=r"code\.safetensors: this shard does not exist any more"):
        source.rows(at(0, 0), 40)
    shard.write_bytes(content)
    assert np.array_equal(source.rows(at(0, 0), 40).ids, before)


def test_only_segments_in_use_are_mapped(tmp_path: Path) -> None:
    work = disk_line(tmp_path, segments=12)
    CyclePreparer(work).tokenize(0)
    source = DataLineRows(work)

    def mapped() -> int:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return len({entry.split()[-1] for entry in maps if str(DataPaths(work).cycle(0)) in entry})

    source.parts(0)
    assert mapped() == 0
    for row in range(0, 120, 8):
        source.rows(at(0, row), 8)
        assert 0 < mapped() <= 8
    source.rows(at(0, 0), 120)
    assert mapped() <= 8


def test_each_update_holds_each_source_within_two_rows_and_says_so(line: Path) -> None:
    source = DataLineRows(line)
    total: dict[str, int] = {}
    for cycle in range(3):
        for row in range(0, 120, 8):
            batch = source.rows(at(cycle, row), 8)
            assert sum(batch.source_rows.values()) == 8
            assert abs(batch.source_rows["code"] - 8 * 2 / 3) < 2
            for name, count in batch.source_rows.items():
                total[name] = total.get(name, 0) + count
    assert total == {"code": 240, "prose": 120}


def test_sample_digests_name_the_rows(line: Path) -> None:
    one, two = DataLineRows(line), DataLineRows(line)
    digests = [one.rows(at(c, r), 8).samples for c in range(3) for r in range(0, 120, 8)]
    assert len(set(digests)) == len(digests)
    assert digests[5] == two.rows(at(0, 40), 8).samples
    assert one.rows(at(0, 0), 7).samples != digests[0]


def test_windows_are_shuffled_within_a_segment(line: Path) -> None:
    order = read_manifest(DataPaths(line).manifest(0)).order(0)
    first = order.windows[: order.bounds[1]][order.sequence[: order.bounds[1]] == 0]
    assert sorted(first.tolist()) == list(range(len(first)))
    assert first.tolist() != list(range(len(first)))


def test_reading_past_a_part_is_our_own_error(line: Path) -> None:
    with pytest.raises(AssertionError):
        DataLineRows(line).rows(at(0, 119), 2)


def test_another_order_than_the_recorded_one_is_refused(line: Path, tmp_path: Path) -> None:
    work = tmp_path / "copy"
    shutil.copytree(line, work)
    path = DataPaths(work).manifest(0)
    value = dict(read_manifest(path).value)
    write_manifest(path, {**value, "seed": value["seed"] + 1})
    with pytest.raises(Refused, match="row order"):
        DataLineRows(work).parts(0)


def flip(path: Path, at_byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[at_byte] ^= 0x80
    path.write_bytes(data)


def other_shard(path: Path) -> None:
    shutil.copy(path.parent / "prose.safetensors", path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: flip(path, -1),  # a token
        lambda path: flip(path, 0),  # the length of the header
        lambda path: flip(path, 8),
        lambda path: flip(path, path.stat().st_size // 2),
        lambda path: path.write_bytes(path.read_bytes()[:-2]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
        other_shard,
    ],
)
def test_a_damaged_shard_is_never_trained_on_and_can_be_made_again(
    line: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    work = tmp_path / "copy"
    shutil.copytree(line, work)
    record = read_manifest(DataPaths(work).manifest(1)).shards()[0][0]
    shard = DataPaths(work).cycle(1) / record["path"]
    assert shard.name == "code.safetensors"
    damage(shard)
    for call in (lambda: DataLineRows(work).parts(1), lambda: DataLineRows(work).rows(at(1, 0), 1)):
        with pytest.raises(Refused) as caught:
            call()
        (problem,) = caught.value.problems
        assert problem.startswith(f"{shard}: ") and "nstrain data delete" in problem
        assert "--cycle 1`" in problem and "nstrain data prepare" in problem
    DataLineRows(work).rows(at(0, 0), 120)
    preparer = CyclePreparer(work)
    preparer.delete_cycle(1, consumed=False)
    preparer.download(1)
    preparer.tokenize(1)
    assert np.array_equal(
        DataLineRows(work).rows(at(1, 0), 120).ids, DataLineRows(line).rows(at(1, 0), 120).ids
    )


def test_all_damaged_shards_are_named(line: Path, tmp_path: Path) -> None:
    work = tmp_path / "copy"
    shutil.copytree(line, work)
    shards = sorted(DataPaths(work).cycle(0).rglob("*.safetensors"))
    for shard in shards:
        flip(shard, -3)
    with pytest.raises(Refused) as caught:
        DataLineRows(work).parts(0)
    assert sorted(problem.split(": ")[0] for problem in caught.value.problems) == [str(s) for s in shards]


def test_opening_a_cycle_shows_life_once_and_reading_does_not_hash_again(line: Path) -> None:
    beats: list[None] = []
    source = DataLineRows(line, beat=lambda: beats.append(None))
    assert not beats
    source.parts(0)
    opened = len(beats)
    assert opened >= sum(len(records) for records in read_manifest(DataPaths(line).manifest(0)).shards())
    source.parts(0)
    source.rows(at(0, 0), 120)
    assert len(beats) == opened


def test_a_cycle_that_another_data_line_planned_is_refused(line: Path, tmp_path: Path) -> None:
    work = tmp_path / "copy"
    shutil.copytree(line, work)
    path = DataPaths(work).data
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "seed": value["seed"] + 1}))
    source = DataLineRows(work)
    for call in (lambda: source.ready(0), lambda: source.parts(0), lambda: CyclePreparer(work).published(0)):
        with pytest.raises(Refused, match=r"manifests/000000\.json: the cycle was planned when"):
            call()
    # Places on disk do not count.
    for entry in value["sources"].values():
        entry["folder"] = "/moved"
    path.write_text(json.dumps(value))
    assert DataLineRows(work).ready(0)


def test_a_cycle_without_one_shard_is_not_ready(line: Path, tmp_path: Path) -> None:
    work = tmp_path / "copy"
    shutil.copytree(line, work)
    record = read_manifest(DataPaths(work).manifest(1)).shards()[-1][-1]
    (DataPaths(work).cycle(1) / record["path"]).unlink()
    assert not DataLineRows(work).ready(1)
    assert not CyclePreparer(work).published(1)
    CyclePreparer(work).tokenize(1)
    assert np.array_equal(
        DataLineRows(work).rows(at(1, 0), 120).ids, DataLineRows(line).rows(at(1, 0), 120).ids
    )
