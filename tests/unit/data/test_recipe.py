"""recipe.json: exact shares, folders found, and every mistake of a file named at once."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from trainer_core.data.plan.order import quota_sequence
from trainer_core.data.recipe.schema import dump_recipe, integer_shares, load_recipe
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
    sources = {name: {"folder": "a", "id": name} for name in ("x", "y", "z")}
    pieces = [{"from_cycle": 0, "shares": dict.fromkeys(sources, third)}]
    (piece,) = load_recipe(recipe_file(tmp_path, sources=sources, pieces=pieces)).integer_pieces()
    assert piece.shares == {"x": 1, "y": 1, "z": 1}


@pytest.mark.parametrize(
    ("total", "fine"), [(1 - 1e-9, True), (1 + 1e-9, True), (1 - 2e-9, False), (0.9, False)]
)
def test_the_sum_must_be_one_within_a_billionth(tmp_path: Path, total: float, fine: bool) -> None:
    sources = {name: {"folder": "a", "id": name} for name in "wxyz"}
    shares = dict.fromkeys(sources, round(total / 4, 12))
    path = recipe_file(tmp_path, sources=sources, pieces=[{"from_cycle": 0, "shares": shares}])
    if fine:
        load_recipe(path)
    else:
        (problem,) = problems(path)
        assert problem.startswith("pieces.0.shares: sum to ") and "expected 1" in problem


def test_shares_may_be_fractions(tmp_path: Path) -> None:
    sources = {name: {"folder": "a", "id": name} for name in ("x", "y", "z")}
    pieces = [{"from_cycle": 0, "shares": {"x": "1/3", "y": "1/6", "z": 0.5}}]
    path = recipe_file(tmp_path, sources=sources, pieces=pieces)
    recipe = load_recipe(path)
    assert recipe.integer_pieces()[0].shares == {"x": 2, "y": 1, "z": 3}
    assert dump_recipe(recipe)["pieces"][0]["shares"] == {"x": "1/3", "y": "1/6", "z": 0.5}
    path.write_text(json.dumps(dump_recipe(recipe)))
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    "share", ["1/0", "2/1", "-1/2", "1 / 2", "1/2/3", "0.5/1", "\uff11/\uff12", "1/", "1" * 20 + "/9"]
)
def test_other_texts_are_no_shares(tmp_path: Path, share: str) -> None:
    found = problems(recipe_file(tmp_path, pieces=[{"shares": {"code": share, "web": 0.5}}]))
    assert len(found) == 1 and found[0].startswith("pieces.0.shares.code: ")


def test_an_order_too_long_to_walk_is_refused_with_everything_else(tmp_path: Path) -> None:
    sources = {name: {"folder": "a", "id": name} for name in ("x", "y", "z")}
    long = {"x": 0.333333333, "y": 0.333333333, "z": 0.333333334}
    short = {"x": 0.3333333, "y": 0.3333333, "z": 0.3333334}
    pieces = [{"from_cycle": 0, "shares": long}, {"from_cycle": 9, "shares": short}]
    found = problems(recipe_file(tmp_path, sources=sources, pieces=pieces, seed=-1))
    assert len(found) == 2 and "seed" in found[0]
    assert found[1].startswith("pieces.0.shares: their order repeats only after 1,000,000,000 rows")
    assert '"1/3"' in found[1]
    (piece,) = load_recipe(
        recipe_file(tmp_path, sources=sources, pieces=[{"from_cycle": 0, "shares": short}])
    ).integer_pieces()
    assert len(quota_sequence(list(piece.shares.values()), 0, 100)) == 100


@pytest.mark.parametrize("folder", ["a\x00b", "x" * 5000, "~nobody-of-that-name/x", "loop/x"])
def test_what_cannot_be_a_folder_is_a_problem_among_others(tmp_path: Path, folder: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = recipe_file(tmp_path, sources={"code": {"folder": folder}, "web": {"folder": "b"}}, seed=-1)
    found = problems(path)
    assert any(problem.startswith("sources.code.folder: ") for problem in found)
    assert any(problem.startswith("seed: ") for problem in found)


@pytest.mark.parametrize("glob", ["**.jsonl", "a/**b/*.txt", "", "/x", "../x"])
def test_a_glob_that_is_no_pattern(tmp_path: Path, glob: str) -> None:
    sources = {"code": {"folder": "a", "glob": glob}, "web": {"folder": "b"}}
    (problem,) = problems(recipe_file(tmp_path, sources=sources))
    assert problem.startswith("sources.code.glob: ") and repr(glob) in problem


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    sources = {"code": {"folder": "a", "id": "\ud800"}, "web": {"folder": "b"}}
    assert "half a character" in problems(recipe_file(tmp_path, sources=sources))[0]


def test_a_share_may_go_to_zero_and_new_sources_may_come_later(tmp_path: Path) -> None:
    pieces = [{"from_cycle": 0, "shares": {"code": 1}}, {"from_cycle": 7, "shares": {"code": 0, "web": 1}}]
    first, second = load_recipe(recipe_file(tmp_path, pieces=pieces)).integer_pieces()
    assert first.shares == {"code": 1}
    assert (second.from_cycle, second.shares) == (7, {"web": 1})


def test_integer_shares_are_the_smallest() -> None:
    shares = {"a": Fraction("0.25"), "b": Fraction("0.125"), "c": Fraction("0.625")}
    assert integer_shares(shares, ["c", "a", "b", "d"]) == {"c": 5, "a": 2, "b": 1}
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
        "nowhere": {"revision": "main"},
        "twice": {"folder": "b", "repo": "just-a-name"},
        "same": {"folder": "b", "min_age_hours": 1, "markers": ["<x>", "<x>"]},
        "hub": {
            "repo": "own/er",
            "min_age_hours": -1,
            "text": {"list": "l", "join": " <x>"},
            "markers": ["<x>"],
        },
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
        "sources.nowhere",
        "sources.twice",
        "sources.twice.repo",
        "sources.same",
        "sources.same.min_age_hours",
        "sources.same.markers",
        "sources.hub.min_age_hours",
        "sources.hub.text",
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


def test_every_form_of_a_source(tmp_path: Path) -> None:
    messages = {"messages": "chat", "template": ["<|im_start|>", "{role}\n{content}", "<|im_end|>"]}
    sources = {
        "pages": {"repo": "own/er", "glob": "data/*/*.parquet", "min_age_hours": 0, "text": messages},
        "files": {"repo": "own/er", "revision": "v2", "text": {"list": "files", "field": "content"}},
        "named": {
            "repo": "own/er",
            "id": "corpus",
            "text": {"list": "texts", "field": None, "join": "<sep>"},
        },
        "mine": {"folder": "a"},
    }
    pieces = [{"shares": dict.fromkeys(sources, 0.25)}]
    path = recipe_file(tmp_path, sources=sources, pieces=pieces)
    recipe = load_recipe(path)
    found = recipe.sources
    assert {name: source.identity for name, source in found.items()} == {
        "pages": "own/er/data/*/*.parquet",
        "files": "own/er/**/*",
        "named": "corpus",
        "mine": "a",
    }
    assert [source.youngest for source in found.values()] == [0, 24, 24, 24]
    assert found["pages"].text == TextRule(
        kind="messages", column="chat", template=("<|im_start|>", "{role}\n{content}", "<|im_end|>")
    )
    assert found["files"].text == TextRule(kind="list", column="files", field="content", join="\n")
    assert found["named"].text == TextRule(kind="list", column="texts", join="<sep>")
    path.write_text(json.dumps(dump_recipe(recipe)))
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ({"column": ""}, 'expected "auto"'),
        ({"column": "a", "list": "b"}, 'expected {"list"'),
        ({"messages": "m"}, 'expected {"messages"'),
        ({"messages": "m", "template": "{content}"}, 'expected {"messages"'),
        ({"messages": "m", "template": ["{content}", ""]}, 'expected {"messages"'),
        ({"messages": "m", "template": ["{role}"]}, "no part of the template holds {content}"),
        ({"messages": "m", "template": ["{name}{content}"]}, "knows {role} and {content}, not {name}"),
        ({"messages": "m", "template": ["<x>{content}"]}, "give the marker a part of its own"),
        ({"list": "l", "field": ""}, 'expected {"list"'),
        ({"list": "l", "join": None}, 'expected {"list"'),
        ({"list": "l", "join": "\n<x>"}, "a join is one marker alone"),
    ],
)
def test_text_rules_that_are_none(tmp_path: Path, text: Any, words: str) -> None:
    sources = {"code": {"folder": "a", "text": text, "markers": ["<x>"]}, "web": {"folder": "b"}}
    (problem,) = problems(recipe_file(tmp_path, sources=sources))
    assert problem.startswith("sources.code.text: ") and words in problem


def test_two_sources_never_share_an_identity_by_accident(tmp_path: Path) -> None:
    (tmp_path / "deep" / "a").mkdir(parents=True)
    for other in ({"folder": "deep/a"}, {"folder": "b", "id": "a"}, {"repo": "x/y", "id": "a"}):
        (problem,) = problems(recipe_file(tmp_path, sources={"code": {"folder": "a"}, "web": other}))
        assert problem.startswith("sources.web: has the identity 'a', as code; ") and '"id"' in problem


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
