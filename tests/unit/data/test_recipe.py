"""recipe.json: exact shares, folders found, and every mistake of a file named at once."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from trainer_core.data.recipe import dump_recipe, integer_shares, load_recipe
from trainer_core.data.sources import TextRule
from trainer_core.errors import Refused


@pytest.fixture(autouse=True)
def no_host_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = tmp_path / "host.json"
    host.write_text(json.dumps({"work_root": str(tmp_path / "root")}))
    monkeypatch.setenv("NSTRAIN_HOST", str(host))


def recipe_file(tmp_path: Path, **changes: Any) -> Path:
    for name in ("a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
    recipe = {
        "sources": {"code": {"folder": "a"}, "web": {"folder": "b"}},
        "pieces": [{"from_cycle": 0, "shares": {"code": 0.1, "web": 0.9}}],
    }
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe | changes))
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(Refused) as refused:
        load_recipe(path)
    assert all(problem.startswith(f"{path}: ") for problem in refused.value.problems)
    return [problem.removeprefix(f"{path}: ") for problem in refused.value.problems]


def test_defaults_and_exact_shares(tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file(tmp_path))
    source = recipe.sources["code"]
    assert (source.glob, source.stratum, source.text, source.heldout) == ("**/*", "none", TextRule(), 0.01)
    assert source.folder == str(tmp_path / "a")
    (piece,) = recipe.integer_pieces()
    assert (piece.shares, piece.denominator) == ({"code": 1, "web": 9}, 10)


def test_shares_that_almost_sum_to_one_become_exact(tmp_path: Path) -> None:
    third = 0.3333333333
    sources = {name: {"folder": "a"} for name in ("x", "y", "z")}
    pieces = [{"from_cycle": 0, "shares": dict.fromkeys(sources, third)}]
    (piece,) = load_recipe(recipe_file(tmp_path, sources=sources, pieces=pieces)).integer_pieces()
    assert piece.shares == {"x": 1, "y": 1, "z": 1}


@pytest.mark.parametrize(
    ("total", "fine"), [(1 - 1e-9, True), (1 + 1e-9, True), (1 - 2e-9, False), (0.9, False)]
)
def test_the_sum_must_be_one_within_a_billionth(tmp_path: Path, total: float, fine: bool) -> None:
    shares = {"code": 0.5, "web": round(total - 0.5, 12)}
    path = recipe_file(tmp_path, pieces=[{"from_cycle": 0, "shares": shares}])
    if fine:
        load_recipe(path)
    else:
        (problem,) = problems(path)
        assert problem.startswith("pieces.0.shares: sum to ") and "expected 1" in problem


def test_a_share_may_go_to_zero_and_new_sources_may_come_later(tmp_path: Path) -> None:
    pieces = [{"from_cycle": 0, "shares": {"code": 1}}, {"from_cycle": 7, "shares": {"code": 0, "web": 1}}]
    first, second = load_recipe(recipe_file(tmp_path, pieces=pieces)).integer_pieces()
    assert first.shares == {"code": 1, "web": 0}
    assert (second.from_cycle, second.shares) == (7, {"code": 0, "web": 1})


def test_integer_shares_are_the_smallest() -> None:
    shares = {"a": Fraction("0.25"), "b": Fraction("0.125"), "c": Fraction("0.625")}
    assert integer_shares(shares, ["c", "a", "b", "d"]) == {"c": 5, "a": 2, "b": 1, "d": 0}
    assert integer_shares({"a": Fraction(1)}, ["a"]) == {"a": 1}


def test_folders_are_looked_up_beside_the_recipe_then_under_work_root(tmp_path: Path) -> None:
    (tmp_path / "root" / "elsewhere").mkdir(parents=True)
    sources = {"code": {"folder": "a"}, "web": {"folder": "elsewhere"}}
    recipe = load_recipe(recipe_file(tmp_path, sources=sources))
    assert recipe.sources["web"].folder == str(tmp_path / "root" / "elsewhere")


def test_a_written_recipe_reads_back_the_same_from_anywhere(tmp_path: Path) -> None:
    sources = {
        "code": {"folder": "a", "stratum": {"level": 2}, "text": {"column": "content"}, "markers": ["<x>"]},
        "web": {"folder": "b", "stratum": "file", "heldout": 0.05, "id": "corpus"},
    }
    recipe = load_recipe(recipe_file(tmp_path, sources=sources))
    copy = tmp_path / "far" / "recipe.json"
    copy.parent.mkdir()
    copy.write_text(json.dumps(dump_recipe(recipe)))
    assert load_recipe(copy) == recipe


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    sources = {
        "code": {"folder": "missing", "glob": "../*", "heldout": 0.9, "extra": 1},
        "web": {"folder": "b", "stratum": {"levels": 1}, "text": "column", "markers": "<x>"},
        "mix": {"folder": "a"},
    }
    pieces = [
        {"from_cycle": 1, "shares": {"code": 0.5, "webb": 0.1}},
        {"from_cycle": 1, "shares": {"web": "all"}},
    ]
    found = problems(
        recipe_file(tmp_path, sources=sources, pieces=pieces, max_epochs=2, seed=-1, colour="red")
    )
    keys = {problem.split(": ")[0] for problem in found}
    assert keys == {
        "sources.code.folder",
        "sources.code.glob",
        "sources.code.heldout",
        "sources.code.extra",
        "sources.web.stratum",
        "sources.web.text",
        "sources.web.markers",
        "sources.mix",
        "pieces.0.from_cycle",
        "pieces",
        "pieces.0.shares",
        "pieces.0.shares.webb",
        "pieces.1.shares.web",
        "max_epochs",
        "seed",
        "colour",
    }
    assert any("'missing' is not a folder" in problem for problem in found)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"repo": "org/name", "revision": "main"}, '"repo" sources are not available in this version'),
        ({"folder": "a", "text": {"messages": "m", "template": "t"}}, "'messages' rules are not available"),
        (
            {"folder": "a", "text": {"list": "l", "field": "f", "join": "\n"}},
            "'list' rules are not available",
        ),
    ],
)
def test_what_comes_later_is_refused_in_clear_words(
    tmp_path: Path, source: dict[str, Any], words: str
) -> None:
    found = problems(recipe_file(tmp_path, sources={"code": source, "web": {"folder": "b"}}))
    assert any(words in problem for problem in found)


def test_a_source_without_any_share_is_refused(tmp_path: Path) -> None:
    found = problems(recipe_file(tmp_path, pieces=[{"from_cycle": 0, "shares": {"code": 1}}]))
    assert found == ["sources.web: has no share in any piece; give it one or remove it"]


@pytest.mark.parametrize("share", [-0.5, True, "0.5", None, 1.5])
def test_shares_are_plain_numbers(tmp_path: Path, share: Any) -> None:
    found = problems(recipe_file(tmp_path, pieces=[{"from_cycle": 0, "shares": {"code": share, "web": 0.5}}]))
    assert any(problem.startswith("pieces.0.shares.code: ") for problem in found)


@pytest.mark.parametrize("name", ["", "a/b", "..", " a", "x" * 65])
def test_nicknames_are_file_names(tmp_path: Path, name: str) -> None:
    pieces = [{"from_cycle": 0, "shares": {name: 1}}]
    assert problems(recipe_file(tmp_path, sources={name: {"folder": "a"}}, pieces=pieces))


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    for text, words in (
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "sources: this key is required"),
    ):
        path.write_text(text)
        with pytest.raises(Refused, match=words):
            load_recipe(path)
    with pytest.raises(Refused, match="does not exist"):
        load_recipe(tmp_path / "none.json")
