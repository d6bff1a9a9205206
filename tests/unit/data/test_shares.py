"""Shares hold in tokens, not in files or rows, in every update that real shards give; use-up is an error."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.tiny_data import KnownCounts, disk_line, one_consumer, planned_line
from tests.unit.data.inputs import CONTROLS, EOS, byte_tokenizer, dump, write_recipe
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.plan.consumer import register_consumer
from trainer_core.data.plan.planner import plan_cycle
from trainer_core.data.plan.state import PlanState
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.rows.line_rows import DataLineRows, Position, RowBatch
from trainer_core.errors import DataUsedUp
from trainer_core.line.paths import DataPaths

CASE = Path(__file__).parents[2] / "cases" / "A09"
CYCLES = 4
UPDATE_ROWS = 32
LETTER = {letter: len(CONTROLS) + ord(letter) - ord("!") for letter in "xy"}
"""Their ids: the byte alphabet begins with `!`."""


def unequal_line(root: Path, shares: dict[str, str]) -> Path:
    """50 long rows in one file against 900 short ones in three; twice the tokens are in the short ones."""
    for name in ("small", "large"):
        (root / name).mkdir(parents=True)
        for file in sorted(CASE.glob(f"{name}-*.jsonl")):
            shutil.copy(file, root / name)
    (root / "tokenizer.json").write_bytes(dump(byte_tokenizer()))
    work = root / "line"
    init_data_line(
        work,
        recipe=write_recipe(
            root / "recipe.json",
            {name: {"folder": name, "heldout": 0} for name in ("small", "large")},
            shares,
        ),
        tokenizer=root / "tokenizer.json",
        eos_id=EOS,
        cycle_tokens=4096,
    )
    register_consumer(
        work,
        line=root / "trunk",
        row_lengths=[{"from": 0, "to": None, "length": 16}],
        batch=[{"from": 0, "to": None, "tokens": 16 * UPDATE_ROWS}],
    )
    for cycle in range(CYCLES):
        CyclePreparer(work).tokenize(cycle)
    return work


def updates(work: Path, skip: int = 0) -> Iterator[RowBatch]:
    """Every update of all cycles after the first `skip`, read as a trainer that starts there reads them."""
    source = DataLineRows(work)
    for update in range(skip, CYCLES * 8):
        cycle, within = divmod(update, 8)
        yield source.rows(Position(cycle=cycle, part=0, row=within * UPDATE_ROWS), UPDATE_ROWS)


@pytest.mark.parametrize(
    ("shares", "small"),
    [({"small": "1/2", "large": "1/2"}, 1 / 2), ({"small": "1/3", "large": "2/3"}, 1 / 3)],
)
def test_every_update_holds_the_recipe_also_after_a_resume(
    tmp_path: Path, shares: dict[str, str], small: float
) -> None:
    work = unequal_line(tmp_path, shares)
    whole = list(updates(work))
    held = 0
    for number, batch in enumerate(whole, 1):
        assert abs(batch.source_rows["small"] - small * UPDATE_ROWS) < 2
        assert batch.source_rows["small"] + batch.source_rows["large"] == UPDATE_ROWS
        # What the counts say is what the rows hold: x is written in one source only, y in the other.
        of_small = (batch.ids == LETTER["x"]).sum(axis=1) > (batch.ids == LETTER["y"]).sum(axis=1)
        assert of_small.sum() == batch.source_rows["small"]
        held += batch.source_rows["small"]
        assert abs(held - small * UPDATE_ROWS * number) < 2
    for skip in (1, 7, 8, 19):
        again = list(updates(work, skip))
        assert [batch.samples for batch in again] == [batch.samples for batch in whole[skip:]]
        assert [batch.source_rows for batch in again] == [batch.source_rows for batch in whole[skip:]]


def test_a_cycle_larger_than_a_source_is_an_error_that_names_it_and_what_it_lacks() -> None:
    """Forty windows against four thousand at equal shares, and a cycle that is larger than both."""
    lengths = {
        "short": {"all": {"f": [16] * 40 + [1]}},
        "long": {"all": {f"f{i}": [16] * 400 for i in range(10)}},
    }
    line = planned_line(lengths, cycle_tokens=16 * 9000, shares={"short": 1, "long": 1}, segments=4)
    counts = KnownCounts(lengths)
    with pytest.raises(DataUsedUp) as caught:
        plan_cycle(
            line, one_consumer(row_length=16, tokens_per_update=512), PlanState(), counts, counts.estimate
        )
    rows = 9000 // 32 * 32 // 2
    problems = str(caught.value).splitlines()
    assert problems[:2] == [
        f"cycle 0, source short, stratum all: used up, {rows * 16 + 1 - 641:,} tokens short",
        f"cycle 0, source long, stratum all: used up, {rows * 16 + 1 - 64_000:,} tokens short",
    ]
    assert "every text is trained once" in problems[2] and "make a new data line" in problems[2]
    assert len(problems) == 3


def test_no_short_cycle_is_published_when_a_source_ends(tmp_path: Path) -> None:
    work = disk_line(tmp_path, shares={"code": 1, "prose": 1}, files=2, docs=20, cycle_tokens=4096)
    preparer = CyclePreparer(work)
    published = 0
    with pytest.raises(DataUsedUp, match=r"source (code|prose), stratum t\d: used up, [\d,]+ tokens short"):
        while True:
            preparer.tokenize(published)
            published += 1
    paths = DataPaths(work)
    assert published >= 1
    assert not paths.manifest(published).exists() and not paths.cycle(published).exists()
    source = DataLineRows(work)
    assert [source.ready(cycle) for cycle in range(published + 1)] == [True] * published + [False]
    assert all(source.parts(cycle)[0].num_rows == 256 for cycle in range(published))
