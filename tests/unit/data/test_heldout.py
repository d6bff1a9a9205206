"""Held-out streams by source: what they depend on, what a new source leaves alone, how much is read."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.hub import hub_in_use
from tests.tools.hub_lines import on_hub
from tests.tools.made_line import prepare, write_recipe, write_sources
from tests.tools.tiny_data import ROW_LENGTH, disk_line, register, write_byte_tokenizer
from trainer_core.data.audit.verify import verify_data_line
from trainer_core.data.heldout import streams as heldout
from trainer_core.data.heldout.streams import make_streams, read_heldout, stream_path
from trainer_core.data.heldout.validation import (
    cut_rows,
    extend_heldout,
    load_rows,
    make_heldout,
    rows_digests,
)
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.rows.line_rows import DataLineRows
from trainer_core.data.rows.source import Position
from trainer_core.data.sources import DataLine, Piece, load_data_line
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.data.tokens.shards import read_shard
from trainer_core.errors import Refused
from trainer_core.line.files import write_json
from trainer_core.line.paths import DataPaths


def heldout_files(work: Path) -> dict[str, bytes]:
    folder = DataPaths(work).heldout
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}


def with_web(work: Path, root: Path, **changes: object) -> DataLine:
    """The data line grown by a source and a piece that ends another source, as `data append` does it."""
    more = disk_line(root, shares={"code": 1, "prose": 1, "web": 1}, consumer=False, heldout=0.2)
    web = replace(load_data_line(more).source("web"), **changes)  # type: ignore[arg-type]
    line = load_data_line(work)
    piece = Piece(from_cycle=2, shares={"prose": 1, "web": 3})
    return replace(line, sources=(*line.sources, web), pieces=(*line.pieces, piece))


def test_a_new_source_changes_nothing_of_the_others(tmp_path: Path) -> None:
    work = disk_line(tmp_path / "a", consumer=False)
    make_heldout(work)
    for length in (16, 32):
        cut_rows(work, length, 3)
    before, digests, rows = heldout_files(work), rows_digests(work), load_rows(work, 32, 1)
    identity = DataLineRows(work).identity()
    paths, grown = DataPaths(work), with_web(work, tmp_path / "b")
    extend_heldout(paths, grown)
    assert load_rows(work, 32, 1).sha256 == rows.sha256, "data.json may follow later"
    write_json(paths.data, grown.to_json())
    after = heldout_files(work)
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[0] for name in after.keys() - before.keys()} == {"web"}
    assert rows_digests(work) == digests
    assert DataLineRows(work).identity() == identity
    assert load_rows(work, 32, 1).sha256 == rows.sha256
    for length in (16, 32):
        later = load_rows(work, length, 2)
        assert list(later.sources) == ["code", "prose", "web"]
        assert later.recipe == {"prose": 0.25, "web": 0.75}, "a source without a share has no weight"
        assert all(len(stratum.ids) == 3 for stratum in later.sources["web"])
    everything = {p: p.read_bytes() for p in paths.heldout.rglob("*") if p.is_file()}
    extend_heldout(paths, grown)
    make_heldout(work)
    assert everything == {p: p.read_bytes() for p in paths.heldout.rglob("*") if p.is_file()}


def test_rows_of_a_source_from_its_first_cycle_on(tmp_path: Path) -> None:
    work = disk_line(tmp_path / "a", consumer=False)
    make_heldout(work)
    cut_rows(work, 16, 3)
    paths, grown = DataPaths(work), with_web(work, tmp_path / "b")
    write_json(paths.data, grown.to_json())
    for call in (lambda: read_heldout(paths, grown), lambda: load_rows(work, 16, 0)):
        with pytest.raises(
            Refused, match="held-out text of source web is not collected; run `nstrain data val"
        ):
            call()
    make_heldout(work)
    assert list(load_rows(work, 16, 1).sources) == ["code", "prose"]
    with pytest.raises(
        Refused, match=r"rows-16\.json: source web has no rows of 16 tokens; run `nstrain data"
    ):
        load_rows(work, 16, 2)
    cut_rows(work, 16, 3)
    assert list(load_rows(work, 16, 2).sources) == ["code", "prose", "web"]


def test_a_new_source_without_a_row_is_refused_and_another_may_take_its_name(tmp_path: Path) -> None:
    work = disk_line(tmp_path / "a", consumer=False)
    make_heldout(work)
    cut_rows(work, 16, 3)
    paths = DataPaths(work)
    rows = (paths.heldout / "rows-16.json").read_bytes()
    with pytest.raises(Refused, match=r"source web: its held-out text \(0 tokens"):
        extend_heldout(paths, with_web(work, tmp_path / "b", heldout=0.0))
    assert (paths.heldout / "rows-16.json").read_bytes() == rows
    load_rows(work, 16)
    grown = with_web(work, tmp_path / "c")
    extend_heldout(paths, grown)
    write_json(paths.data, grown.to_json())
    rows_of_web = load_rows(work, 16, 2).sources["web"]
    # Cut off after its rows were cut, then appended with other settings.
    write_json(paths.data, replace(grown, sources=grown.sources[:2], pieces=grown.pieces[:1]).to_json())
    grown = with_web(work, tmp_path / "d", heldout=0.3)
    extend_heldout(paths, grown)
    write_json(paths.data, grown.to_json())
    assert load_rows(work, 16, 2).sources["web"][0].ids.tolist() != rows_of_web[0].ids.tolist()


@pytest.mark.parametrize("key", ["identity", "heldout", "encode_sha256", "files", "markers"])
def test_a_source_that_changed_is_refused_by_name(tmp_path: Path, key: str) -> None:
    work = disk_line(tmp_path)
    make_heldout(work)
    paths, line = DataPaths(work), load_data_line(work)
    spec = line.source("prose")
    changes = {
        "identity": "test/other",
        "heldout": 0.2,
        "encode_sha256": "0" * 64,
        "files": spec.files[:-1],
        "markers": ("<x>",),
    }
    line = replace(line, sources=(line.source("code"), replace(spec, **{key: changes[key]})))
    for call in (read_heldout, lambda paths, line: make_streams(paths, line, OpenFiles(work, line), 1 << 20)):
        with pytest.raises(Refused, match=r"the text of prose was collected from other files, or by other"):
            call(paths, line)


def test_an_interrupted_walk_goes_on_where_it_was(tmp_path: Path) -> None:
    work, other = disk_line(tmp_path / "a"), disk_line(tmp_path / "b")
    make_heldout(other)
    told: list[str] = []

    def stop_at_the_third(message: str) -> None:
        told.append(message)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_heldout(work, progress=stop_at_the_third)
    assert [message.split(":")[0] for message in told] == ["code, t0", "code, t1", "prose, t0"]
    done = stream_path(DataPaths(work), "code", "t0").stat().st_ino
    with pytest.raises(Refused, match="source prose is not collected"):
        read_heldout(DataPaths(work), load_data_line(work))
    make_heldout(work, progress=told.append)
    assert [message.split(":")[0] for message in told[3:]] == ["prose, t1"]
    assert stream_path(DataPaths(work), "code", "t0").stat().st_ino == done
    assert heldout_files(work) == heldout_files(other)


def test_five_percent_hold_out_five_times_the_documents(tmp_path: Path) -> None:
    counts = {}
    for fraction in (0.01, 0.05):
        work = disk_line(
            tmp_path / str(fraction), shares={"code": 1}, strata=1, files=4, docs=1500, heldout=fraction
        )
        (counts[fraction],) = (e["documents"] for e in make_heldout(work)["sources"]["code"].values())
    # Of 6,000 documents; four standard deviations either way.
    assert 30 <= counts[0.01] <= 91
    assert 232 <= counts[0.05] <= 368
    assert 3.5 <= counts[0.05] / counts[0.01] <= 7.5


def test_a_walk_ends_after_a_bounded_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, other = (disk_line(tmp_path / name, strata=1, files=4) for name in "ab")
    (whole,) = make_heldout(work)["sources"]["code"].values()
    monkeypatch.setattr(heldout, "WALKED_BYTES", 1)
    (entry,) = make_heldout(other)["sources"]["code"].values()
    assert (whole["files"], entry["files"]) == (4, 1)
    assert 0 < entry["documents"] < whole["documents"]


def test_nothing_is_read_where_nothing_is_held_out(tmp_path: Path) -> None:
    work = disk_line(tmp_path, heldout=0.0)
    record = make_heldout(work)
    entries = [entry for strata in record["sources"].values() for entry in strata.values()]
    assert {(entry["files"], entry["documents"], entry["tokens"]) for entry in entries} == {(0, 0, 0)}


def test_files_of_a_hub_are_downloaded_one_by_one_and_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, other = (
        disk_line(tmp_path / name, heldout=0.3, shares={"code": 1}, strata=1, files=2) for name in "ab"
    )
    make_heldout(work)
    expected = heldout_files(work)
    with hub_in_use(monkeypatch) as hub:
        on_hub(hub, other)
        here = OpenFiles(other, load_data_line(other)).sources
        first = load_data_line(other).source("code").files[0].path
        here.fetch("code", first)
        make_heldout(other)
        assert here.held() == [("code", first)], "what lay there before stays"
    assert heldout_files(other) == expected
    assert read_shard(stream_path(DataPaths(other), "code", "t0")).tokens.size > 0


def test_the_record_says_what_is_there(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    record = make_heldout(work)
    written = json.loads((DataPaths(work).heldout / "heldout.json").read_text())
    assert written == record
    assert written["made_from"].keys() == written["sources"].keys() == {"code", "prose"}


def test_rows_and_preparer_opened_before_a_source_was_added_know_it(tmp_path: Path) -> None:
    work = disk_line(tmp_path / "a")
    make_heldout(work)
    cut_rows(work, ROW_LENGTH, 3)
    rows, paths = DataLineRows(work), DataPaths(work)
    identity = rows.identity()
    preparer = CyclePreparer(work)
    for cycle in range(2):
        preparer.tokenize(cycle)
    grown = with_web(work, tmp_path / "b")
    extend_heldout(paths, grown)
    write_json(paths.data, grown.to_json())
    preparer.tokenize(2)
    assert rows.ready(1) and rows.ready(2)
    batch = rows.rows(Position(cycle=2, part=0, row=0), rows.parts(2)[0].num_rows)
    assert batch.source_rows.keys() == {"prose", "web"}
    assert list(rows.validation(ROW_LENGTH, 2).sources) == ["code", "prose", "web"]
    assert rows.identity() == identity == DataLineRows(work).identity()


def test_strata_and_folders_of_any_name(tmp_path: Path) -> None:
    for name in ("\u6587" * 60 + "a", "\u6587" * 60 + "b", "n" * 250, "odd.part", "x.spool"):
        write_sources(tmp_path / "text" / name, ".", strata=1, files=1, docs=40)
    work = tmp_path / "line"
    write_byte_tokenizer(tmp_path / "tokenizer.json")
    recipe = write_recipe(tmp_path, (0, {"text": 1}))
    init_data_line(work, recipe=recipe, tokenizer=tmp_path / "tokenizer.json", eos_id=256, cycle_tokens=2000)
    record = make_heldout(work)
    paths = [stream_path(DataPaths(work), "text", name) for name in record["sources"]["text"]]
    assert len(set(paths)) == 5 and all(path.exists() for path in paths)
    register(work)
    prepare(work, 0)
    assert verify_data_line(work).problems == []
