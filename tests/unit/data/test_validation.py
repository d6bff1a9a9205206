"""Held-out rows are real held-out text, pinned, and weighted by what is there."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tools.run_json import run_json
from tests.tools.tiny_data import disk_line
from trainer_core.data.heldout.rows import pack_rows
from trainer_core.data.heldout.streams import stream_path
from trainer_core.data.heldout.validation import cut_rows, load_rows, make_heldout, rows_digests
from trainer_core.data.plan.consumer import register_consumer
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.rows.line_rows import DataLineRows
from trainer_core.data.tokens.shards import read_shard, write_shard
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths


def test_rows_are_held_out_text_that_no_cycle_holds(tmp_path: Path) -> None:
    work = disk_line(tmp_path, heldout=0.3)
    record = make_heldout(work)
    assert all(entry["documents"] > 0 for strata in record["sources"].values() for entry in strata.values())
    cut_rows(work, 16, 4)
    preparer = CyclePreparer(work)
    for cycle in range(3):
        preparer.tokenize(cycle)
    trained = set()
    for shard in DataPaths(work).cycles.rglob("*.safetensors"):
        tokens = read_shard(shard).tokens.tolist()
        trained |= {tuple(tokens[i : i + 17]) for i in range(len(tokens) - 16)}
    rows = load_rows(work, 16)
    for strata in rows.sources.values():
        assert sum(stratum.share for stratum in strata) == pytest.approx(1)
        for stratum in strata:
            assert stratum.ids.shape == (4, 17) and stratum.ids.dtype == np.int64
            assert np.array_equal(stratum.ids[:-1, -1], stratum.ids[1:, 0]), "stride L"
            # Texts begin with a unique number, so a whole row of one occurs nowhere else.
            assert not any(tuple(row.tolist()) in trained for row in stratum.ids)
    assert rows.recipe == {"code": 2 / 3, "prose": 1 / 3}


def test_everything_is_pinned_and_repeated_calls_change_nothing(tmp_path: Path) -> None:
    work, other = disk_line(tmp_path / "a"), disk_line(tmp_path / "b")
    for root in (work, other):
        make_heldout(root)
        cut_rows(root, 16, 3)
    first = load_rows(work, 16)
    before = {p: p.read_bytes() for p in DataPaths(work).heldout.rglob("*") if p.is_file()}
    make_heldout(work)
    cut_rows(work, 16, 3)
    assert before == {p: p.read_bytes() for p in DataPaths(work).heldout.rglob("*") if p.is_file()}
    assert first.sha256 == load_rows(other, 16).sha256 == rows_digests(work)["16"]
    assert DataLineRows(work).validation(16, 0).sha256 == first.sha256
    assert DataLineRows(work).identity()["heldout"] == {"16": first.sha256}
    with pytest.raises(Refused, match="3 rows per stratum are pinned, 5 were asked for"):
        cut_rows(work, 16, 5)


def test_changed_streams_are_refused(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    make_heldout(work)
    cut_rows(work, 16, 3)
    path = stream_path(DataPaths(work), "code", "t0")
    shard = read_shard(path)
    tokens = shard.tokens.copy()
    tokens[3] += 1
    write_shard(path, tokens, shard.doc_ends.copy())
    for call in (lambda: load_rows(work, 16), lambda: cut_rows(work, 8, 3)):
        with pytest.raises(Refused, match=r"t0\.safetensors: this held-out stream is damaged; .*data val"):
            call()


def test_rows_need_held_out_text_and_a_cut(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    with pytest.raises(Refused, match="nstrain data val"):
        cut_rows(work, 16, 3)
    with pytest.raises(Refused, match="no validation rows of 16 tokens"):
        load_rows(work, 16)


def test_a_stratum_without_a_row_gives_its_weight_to_the_others(tmp_path: Path) -> None:
    work = disk_line(tmp_path, shares={"code": 1})
    make_heldout(work)
    paths = DataPaths(work)
    small = read_shard(stream_path(paths, "code", "t0"))
    first = int(small.doc_ends[0])
    tokens = small.tokens[:first].copy()
    shutil.rmtree(paths.heldout / "code" / "t0", ignore_errors=True)
    digest = write_shard(stream_path(paths, "code", "t0"), tokens, np.array([first], dtype=np.uint64))
    streams = json.loads((paths.heldout / "heldout.json").read_text())
    streams["sources"]["code"]["t0"] |= {"blake2b": digest}
    (paths.heldout / "heldout.json").write_text(json.dumps(streams))
    record = cut_rows(work, 128, 2)
    by_name = {entry["stratum"]: entry for entry in record["sources"]["code"]["strata"]}
    assert (by_name["t0"]["rows"], by_name["t0"]["share"]) == (0, 0.0)
    assert (by_name["t1"]["rows"], by_name["t1"]["share"]) == (2, 1.0)
    assert any("stratum t0" in note and "other strata carry its weight" in note for note in record["notes"])
    assert [stratum.name for stratum in load_rows(work, 128).sources["code"]] == ["t1"]


def test_a_source_without_any_row_is_refused_by_name(tmp_path: Path) -> None:
    work = disk_line(tmp_path, heldout=0.0)
    make_heldout(work)
    with pytest.raises(Refused) as caught:
        cut_rows(work, 16, 3)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["source code", "source prose"]
    assert "its held-out text (0 tokens, at most 0 of a stratum) fills no row of 16" in str(caught.value)


def test_a_source_with_too_little_held_out_text_says_how_much_it_has(tmp_path: Path) -> None:
    work = disk_line(tmp_path, heldout=0.1, shares={"code": 1}, strata=1)
    (held,) = (entry["tokens"] for entry in make_heldout(work)["sources"]["code"].values())
    cut_rows(work, held - 1, 1)
    with pytest.raises(Refused) as caught:
        cut_rows(work, held, 1)
    message = f"source code: its held-out text ({held:,} tokens) fills no row of {held:,} tokens, which needs"
    assert str(caught.value).startswith(message)
    assert "use shorter rows" in str(caught.value) and "`heldout` fraction" in str(caught.value)


def pinned_line(tmp_path: Path) -> Path:
    """A data line whose training line wants three rows of 16 tokens from each stratum, cut before it."""
    work = disk_line(tmp_path, consumer=False)
    make_heldout(work)
    cut_rows(work, 16, 3)
    line = tmp_path / "trunk"
    line.mkdir()
    run = run_json(validation={"every_updates": 8, "rows_per_stratum": 3})
    (line / "run.json").write_text(json.dumps(run))
    register_consumer(
        work,
        line=line,
        row_lengths=[{"from": 0, "to": None, "length": 16}],
        batch=[{"from": 0, "to": None, "tokens": 64}],
    )
    return work


def heldout_bytes(work: Path) -> dict[str, bytes]:
    folder = DataPaths(work).heldout
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize("damage", [Path.unlink, cut_short, lambda path: path.write_bytes(b"")])
def test_data_val_makes_damaged_streams_again(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    work = pinned_line(tmp_path)
    before = heldout_bytes(work)
    path = stream_path(DataPaths(work), "prose", "t1")
    damage(path)
    with pytest.raises(
        Refused, match=r"t1\.safetensors: this held-out stream .*; run `nstrain data val --work"
    ):
        load_rows(work, 16)
    make_heldout(work)
    assert heldout_bytes(work) == before
    load_rows(work, 16)


def test_data_val_cuts_lost_rows_again(tmp_path: Path) -> None:
    work = pinned_line(tmp_path)
    before = heldout_bytes(work)
    path = DataPaths(work).heldout / "rows-16.json"
    path.unlink()
    for call in (load_rows, lambda work, _: rows_digests(work)):
        with pytest.raises(Refused, match=r"rows-16\.json: no validation rows .*nstrain data val --work"):
            call(work, 16)
    make_heldout(work)
    assert heldout_bytes(work) == before


@pytest.mark.parametrize("name", ["rows-16.json", "heldout.json"])
def test_damaged_records_are_refused_and_come_back_identical(tmp_path: Path, name: str) -> None:
    work = pinned_line(tmp_path)
    before = heldout_bytes(work)
    path = DataPaths(work).heldout / name
    good = json.loads(path.read_text())
    damaged: list[Any] = ["{", "[]", {}, {"format": good["format"]}, {**good, "format": "x/1"}]
    damaged += [{**good, key: 1.5} for key in good if key not in ("format", "data_digest")]
    for content in damaged:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(Refused, match=rf"{name}: .*; delete it and run `nstrain data val --work"):
            load_rows(work, 16)
    path.unlink()
    make_heldout(work)
    assert heldout_bytes(work) == before


def test_rows_that_are_not_the_pinned_ones_are_refused(tmp_path: Path) -> None:
    work = pinned_line(tmp_path)
    path = DataPaths(work).heldout / "rows-16.json"
    record = json.loads(path.read_text())
    record["sources"]["code"]["strata"][0]["share"] = 0.5
    path.write_text(json.dumps(record))
    with pytest.raises(
        Refused, match=r"rows of source code are .* is pinned; delete it and run `nstrain data"
    ):
        load_rows(work, 16)


def test_held_out_text_of_another_data_line_is_refused(tmp_path: Path) -> None:
    work = pinned_line(tmp_path)
    path = DataPaths(work).data
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "seed": value["seed"] + 1}))
    with pytest.raises(Refused, match=r"put back the data\.json"):
        load_rows(work, 16)


def test_streams_are_bounded(tmp_path: Path) -> None:
    work = disk_line(tmp_path, heldout=0.5)
    record = make_heldout(work, tokens_per_stratum=200)
    for strata in record["sources"].values():
        for entry in strata.values():
            assert 200 <= entry["tokens"] < 200 + 80
            assert entry["files"] < 4
    assert json.loads((DataPaths(work).heldout / "heldout.json").read_text()) == record


def test_long_documents_come_first_in_long_rows(tmp_path: Path) -> None:
    lengths = [3, 20, 4, 30, 5, 9]
    tokens = np.concatenate([np.full(n, i, dtype=np.uint16) for i, n in enumerate(lengths)])
    write_shard(tmp_path / "s", tokens, np.cumsum(lengths).astype(np.uint64))
    shard = read_shard(tmp_path / "s")
    stream = [1] * 20 + [3] * 30 + [5] * 9 + [0] * 3 + [2] * 4 + [4] * 5
    assert pack_rows(shard, 16, 9).tolist() == [stream[i * 16 : i * 16 + 17] for i in range(4)]
    assert pack_rows(shard, 16, 1).tolist() == [stream[:17]]
    assert pack_rows(shard, 70, 5).tolist() == [(tokens.tolist())[:71]] or len(pack_rows(shard, 70, 5)) == 1
    assert len(pack_rows(shard, 71, 5)) == 0
