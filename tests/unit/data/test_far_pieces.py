"""How long sources last is arithmetic over the recipe's pieces, however far away they begin."""

import json
from pathlib import Path

import pytest

from tests.tools.made_line import made_line, write_recipe, write_sources
from tests.unit.data.inputs import write_recipe as recipe_of
from trainer_core.data.making.append import append_recipe
from trainer_core.data.making.init_report import InitReport
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.recipe.schema import load_recipe
from trainer_core.data.sources import DataLine, Piece, load_data_line
from trainer_core.errors import Refused

FAR = 10**18


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_line(tmp_path_factory.mktemp("far")).parent


def lasts(report: InitReport, *pieces: tuple[int, dict[str, int]], tokens: int = 10_000) -> list[int | None]:
    """Cycles that each source lasts with these pieces and so many tokens a cycle."""
    line = DataLine(
        **{
            **vars(report.line),
            "pieces": tuple(Piece(from_cycle=first, shares=shares) for first, shares in pieces),
            "cycle_tokens": tokens,
        }
    )
    changed = InitReport(**{**vars(report), "line": line}).to_json()["sources"]
    return [changed[name]["cycles"] for name in ("code", "prose")]


def test_a_far_piece_is_reported_at_once(root: Path) -> None:
    write_sources(root, "web")
    pieces = ((0, {"code": 0.75, "prose": 0.25}), (3 * 10**9, {"web": 1.0}), (FAR, {"code": 1.0}))
    made = init_data_line(
        root / "first",
        recipe=write_recipe(root, *pieces),
        tokenizer=root / "tokenizer.json",
        eos_id=load_data_line(root / "line").eos_id,
        cycle_tokens=2000,
    )
    assert "code: share 0.7500 then 0.0000 then 1.0000" in str(made) and made.to_json()
    grown = append_recipe(root / "line", write_recipe(root, *pieces))
    assert json.dumps(grown.to_json()) and "enough for more than 100,000 cycles" in str(grown)
    assert load_data_line(root / "line").pieces[2].from_cycle == FAR


def test_the_numbers_are_those_of_cycle_by_cycle(root: Path) -> None:
    report = append_recipe(root / "line", root / "line" / "recipe.json").report
    code, prose = (report.source_tokens(name) for name in ("code", "prose"))
    half = {"code": 1, "prose": 1}
    assert lasts(report, (0, half), tokens=100) == [code // 50, prose // 50]
    assert lasts(report, (0, {"code": 1}), (2, half), tokens=100) == [
        2 + (code - 200) // 50,
        2 + prose // 50,
    ]
    # Used up to the last token by one piece, it lasts until a piece wants more of it.
    assert lasts(report, (0, {"code": 1, "prose": 1}), (1, {"prose": 1}), (7, half), tokens=2 * code)[0] == 7
    assert lasts(report, (0, {"code": 1}), (1, {"prose": 1}), tokens=code + 1)[0] == 0
    assert lasts(report, (0, {"prose": 10**6, "code": 1}), tokens=10) == [None, prose // 10]


def test_a_cycle_beyond_every_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    recipe = recipe_of(tmp_path / "r.json", {"a": {"folder": "a"}})
    value = json.loads(recipe.read_text())
    value["pieces"].append({"from_cycle": 1 << 63, "shares": {"a": 1}})
    recipe.write_text(json.dumps(value))
    with pytest.raises(Refused, match=r"pieces\.1\.from_cycle"):
        load_recipe(recipe)
