"""Use-up is predicted from the calibration: by piece, in whole updates, the earliest cycle first."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from tests.tools.tiny_data import (
    KnownCounts,
    disk_line,
    one_consumer,
    planned_line,
    random_lengths,
    schedules,
)
from trainer_core.data.plan.consumer import Consumer
from trainer_core.data.plan.parts import cycle_parts
from trainer_core.data.plan.planner import plan_cycle
from trainer_core.data.plan.predict import predict, predict_work
from trainer_core.data.plan.state import PlanState
from trainer_core.data.sources import DataLine, Piece
from trainer_core.errors import DataUsedUp, Refused

PIECES = (
    Piece(from_cycle=0, shares={"s0": 3, "s1": 1}),
    Piece(from_cycle=4, shares={"s1": 5, "s2": 2}),
    Piece(from_cycle=9, shares={"s0": 1, "s1": 1, "s2": 1}),
)
RAMP = schedules(lengths=[(0, 16), (5000, 32)], batches=[(0, 128), (900, 192), (20_000, 704)])


def line_of(pieces: tuple[Piece, ...] = PIECES, cycle_tokens: int = 1000) -> DataLine:
    line = planned_line(random_lengths(3, sources=3), cycle_tokens=cycle_tokens, shares=pieces[0].shares)
    return replace(line, pieces=pieces)


def one_by_one(line: DataLine, cycles: int, consumer: Consumer | None) -> dict[str, int | None]:
    """First cycle that each source cannot fill, adding up cycle after cycle."""
    found: dict[str, int | None] = {}
    for source in line.sources:
        taken, start, end = Fraction(0), 0, None
        for cycle in range(cycles):
            piece = line.piece_at(cycle)
            tokens = line.cycle_tokens
            if consumer is not None:
                tokens = sum(part.tokens for part in cycle_parts(consumer, start, line.cycle_tokens))
            start += tokens
            taken += Fraction(piece.shares.get(source.name, 0), piece.denominator) * tokens
            if end is None and taken > sum(stratum.tokens for stratum in source.strata):
                end = cycle
        found[source.name] = end
    return found


@pytest.mark.parametrize("consumer", [None, one_consumer(row_length=16, tokens_per_update=144), RAMP])
@pytest.mark.parametrize("cycles", [1, 4, 5, 9, 30, 700])
@pytest.mark.parametrize("cycle_tokens", [710, 1000, 3333])
def test_every_source_ends_where_adding_up_says(
    consumer: Consumer | None, cycles: int, cycle_tokens: int
) -> None:
    line = line_of(cycle_tokens=cycle_tokens)
    expected = one_by_one(line, cycles, consumer)
    outlook = predict(line, cycles, consumer)
    assert {s.source: s.used_up_at for s in outlook.strata} == expected
    ends = [end for end in expected.values() if end is not None]
    assert outlook.first_end == min(ends, default=None)
    assert outlook.to_json()["first_end"] == outlook.first_end


def test_the_first_cycle_that_ends_is_said_and_all_are_named() -> None:
    outlook = predict(line_of(), 2000)
    assert f"cycle {outlook.first_end} is the first that cannot be filled: s" in str(outlook)
    with pytest.raises(DataUsedUp) as caught:
        outlook.require_enough()
    ends = [int(line.split("used up at cycle ")[1].split(",")[0]) for line in str(caught.value).splitlines()]
    assert len(ends) == 9 and ends == sorted(ends) and ends[0] == outlook.first_end
    enough = predict(line_of(), 2)
    enough.require_enough()
    assert enough.first_end is None and str(enough).endswith("every cycle can be filled")


def test_planning_ends_in_the_predicted_cycle() -> None:
    """Sizes are exact here, so what the estimate leaves out is less than a document per stratum."""
    lengths = random_lengths(7, docs=80, longest=20)
    line = planned_line(lengths, cycle_tokens=3000, shares={"s0": 5, "s1": 1}, segments=3)
    consumer = one_consumer(row_length=16, tokens_per_update=208)
    counts, state = KnownCounts(lengths), PlanState()
    predicted = predict(line, 100, consumer).first_end
    with pytest.raises(DataUsedUp, match=f"^cycle {predicted}, source s0, stratum t.: used up, .* short"):
        while True:
            state = plan_cycle(line, consumer, state, counts, counts.estimate).after


def test_thousands_of_cycles_over_many_strata() -> None:
    lengths = {f"s{i}": {f"t{k:02}": {f"t{k:02}/f": [10**6] * 15} for k in range(10)} for i in range(10)}
    line = planned_line(lengths, cycle_tokens=10**5, shares={f"s{i}": i + 1 for i in range(10)})
    outlook = predict(line, 10_000, one_consumer(row_length=128, tokens_per_update=2048))
    assert len(outlook.strata) == 100
    assert outlook.first_end == -(-150 * 10**6 * 55 // (10 * 48 * 2048)) - 1


def test_a_data_line_is_predicted_in_whole_updates_once_a_training_line_reads_it(tmp_path: Path) -> None:
    alone = predict_work(disk_line(tmp_path / "a", consumer=False, cycle_tokens=250), 200)
    read = predict_work(disk_line(tmp_path / "b", cycle_tokens=250), 200)  # one update of 128 a cycle
    assert all(r.wanted < a.wanted for r, a in zip(read.strata, alone.strata, strict=True))
    assert alone.first_end is not None and read.first_end is not None
    assert read.first_end == pytest.approx(alone.first_end * 250 / 128, abs=2)
    with pytest.raises(Refused, match="cycle 0: 100 tokens hold no whole update"):
        predict_work(disk_line(tmp_path / "c", cycle_tokens=100), 3)
