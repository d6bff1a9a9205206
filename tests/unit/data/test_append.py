"""`data append`: later shares and new sources; edits of the past are refused, and nothing is half done."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tools.made_line import SHARES, made_line, prepare, write_recipe, write_sources
from trainer_core.data.audit.verify import verify_data_line
from trainer_core.data.making import append
from trainer_core.data.making.append import append_recipe
from trainer_core.data.sources import load_data_line
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

LATER = {"code": 0.5, "prose": 0.25, "web": 0.25}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_line(tmp_path_factory.mktemp("grown"), cycles=2)


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Path:
    """A copy of the line, whose recipe and sources lie in its parent."""
    copy = tmp_path / "line"
    shutil.copytree(made, copy)
    for name in SHARES:
        (tmp_path / name).symlink_to(made.parent / name)
    write_sources(tmp_path, "web")
    value = json.loads(DataPaths(copy).data.read_text())
    for name in SHARES:
        assert value["sources"][name]["folder"] == str(made.parent / name)
    return copy


def refused(work: Path, recipe: Path) -> tuple[str, ...]:
    before = {path: path.read_bytes() for path in work.iterdir() if path.is_file()}
    with pytest.raises(Refused) as error:
        append_recipe(work, recipe)
    assert {path: path.read_bytes() for path in before} == before
    return error.value.problems


def test_new_shares_and_a_new_source(work: Path) -> None:
    paths = DataPaths(work)
    before = load_data_line(work)
    manifests = [paths.manifest(cycle).read_bytes() for cycle in range(2)]
    said: list[str] = []
    done = append_recipe(work, write_recipe(work.parent, (0, SHARES), (2, LATER)), progress=said.append)
    assert done.sources == ("web",) and [piece.from_cycle for piece in done.pieces] == [2]
    line = load_data_line(work)
    assert line.sources[:2] == before.sources and line.sources[2].name == "web"
    assert line.piece_at(1).shares == {"code": 3, "prose": 1}
    assert line.piece_at(2).shares == {"code": 2, "prose": 1, "web": 1}
    assert [line.digest(0), line.digest(1)] == [before.digest(0), before.digest(1)] != [line.digest(2)] * 2
    assert set(json.loads(paths.calibration.read_text())["sources"]) == {"code", "prose", "web"}
    prepare(work, 2)
    assert [paths.manifest(cycle).read_bytes() for cycle in range(2)] == manifests
    assert set(json.loads(paths.manifest(2).read_bytes())["parts"][0]["rows"]) == {"code", "prose", "web"}
    found = verify_data_line(work)
    assert found.ok and found.checked["held-out streams"] == 6, str(found)
    assert any(message.startswith("web: 8 files, 2 strata") for message in said)
    assert "appended: shares from cycle 2 on, new sources web" in str(done)
    again = append_recipe(work, paths.recipe)
    assert again.pieces == () == again.sources and "nothing is changed" in str(again)
    assert load_data_line(work) == line


def test_the_past_is_refused_with_old_and_new(work: Path) -> None:
    edited = {
        "code": {"folder": "code", "stratum": "none", "heldout": 0.2, "markers": ["<x>"], "glob": "*/*"}
    }
    recipe = write_recipe(
        work.parent,
        (0, {"code": 0.5, "web": 0.5}),
        (1, {"code": 1}),
        seed=4,
        sources=edited | {"web": {"folder": "web"}},
    )
    found = refused(work, recipe)
    for words in (
        "seed: is 4, the data line was made with 3; put it back",
        "sources.code.stratum: is 'none', the data line has 1; put it back",
        "sources.code.heldout: is 0.2, the data line has 0.1;",
        "sources.code.markers: is ['<x>'], the data line has [];",
        "sources.code.glob: is '*/*', the data line has '**/*';",
        "sources.prose: is missing; the data line has it",
        "pieces.0: is from cycle 0 on code 1/2, web 1/2, the data line has from cycle 0 on code 3/4, prose",
        "pieces.1.from_cycle: is 1, and cycles up to 1 are planned; begin at cycle 2 or later",
    ):
        assert any(words in problem for problem in found), (words, found)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([(0, SHARES), (1, {"code": 0.5, "prose": 0.5})], "begin at cycle 2 or later"),
        ([(0, {"code": 0.5, "prose": 0.5}), (5, SHARES)], "pieces.0: is from cycle 0 on code 1/2, prose 1/2"),
    ],
)
def test_planned_cycles_keep_their_shares(work: Path, pieces: list[Any], words: str) -> None:
    (problem,) = refused(work, write_recipe(work.parent, *pieces))
    assert words in problem


def test_a_shorter_recipe_is_an_edit(work: Path) -> None:
    append_recipe(work, write_recipe(work.parent, (0, SHARES), (4, LATER)))
    recipe = write_recipe(work.parent, (0, SHARES))
    assert {problem.split(": ", 1)[1].split(":")[0] for problem in refused(work, recipe)} == {
        "sources.web",
        "pieces.1",
    }


def test_another_tokenizer_or_changed_files_are_refused(work: Path, made: Path) -> None:
    recipe = write_recipe(work.parent, (0, SHARES), (2, {"code": 1}))
    tokenizer, path = made.parent / "tokenizer.json", made.parent / "code" / "t0" / "f0.jsonl"
    kept, before = tokenizer.read_bytes(), path.read_bytes()
    try:
        tokenizer.write_bytes(kept + b"\n")
        assert "the data line was made with" in refused(work, recipe)[0]
        tokenizer.write_bytes(kept)
        path.write_bytes(before + b"\n")
        assert f"has {len(before) + 1} bytes, {len(before)} were pinned" in refused(work, recipe)[0]
    finally:
        tokenizer.write_bytes(kept)
        path.write_bytes(before)


def test_a_new_source_without_text_changes_nothing(work: Path) -> None:
    shutil.rmtree(work.parent / "web")
    (work.parent / "web" / "t0").mkdir(parents=True)
    (work.parent / "web" / "t0" / "a.jsonl").write_text('{"text": " "}\n')
    (problem,) = refused(work, write_recipe(work.parent, (0, SHARES), (2, LATER)))
    assert problem.startswith("source 'web': ") and "hold no documents" in problem


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_interrupted_append_leaves_the_line_and_is_run_again(
    work: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    recipe = write_recipe(work.parent, (0, SHARES), (2, LATER))
    line, steps = load_data_line(work), 0
    write = append.write_json

    def stopped(path: Path, value: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            raise KeyboardInterrupt
        write(path, value)

    monkeypatch.setattr(append, "write_json", stopped)
    with pytest.raises(KeyboardInterrupt):
        append_recipe(work, recipe)
    monkeypatch.undo()
    assert load_data_line(work) == line
    append_recipe(work, recipe)
    prepare(work, 2)
    assert verify_data_line(work).ok


def test_files_downloaded_ahead_for_the_line_stay(work: Path) -> None:
    ahead = DataPaths(work).incoming / "code" / "t0" / "f0.parquet"
    ahead.parent.mkdir(parents=True)
    ahead.write_bytes(b"downloaded for the next cycle")
    append_recipe(work, write_recipe(work.parent, (0, SHARES), (2, LATER)))
    assert ahead.read_bytes() == b"downloaded for the next cycle"
