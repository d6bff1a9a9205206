"""Parts of a cycle: whole updates by the schedules in force, whatever is added to the schedules later."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.tools.tiny_data import schedules
from trainer_core.data.plan.consumer import Consumer
from trainer_core.data.plan.parts import PartRows, cycle_parts, spread_segments


def one_by_one(consumer: Consumer, start: int, cycle_tokens: int) -> list[tuple[int, int]]:
    """(start token, row length) of every update of a cycle, an update at a time."""
    found, tokens, last = [], start, 0
    while True:
        length = consumer.row_length(tokens)
        step = consumer.batch(tokens) // length * length
        if not step or tokens + max(step, last) > start + cycle_tokens:
            return found
        found.append((tokens, length))
        tokens, last = tokens + step, step


def flat(parts: Sequence[PartRows], consumer: Consumer) -> list[tuple[int, int]]:
    """The updates that parts hold, walked from their first rows."""
    found = []
    for part in parts:
        tokens = part.start_token
        for _ in range(part.updates):
            found.append((tokens, part.row_length))
            tokens += consumer.batch(tokens) // part.row_length * part.row_length
        assert tokens == part.start_token + part.num_rows * part.row_length
    return found


CASES = [
    schedules(lengths=[(0, 16)], batches=[(0, 128)]),
    schedules(lengths=[(0, 16), (1000, 64)], batches=[(0, 128)]),
    schedules(lengths=[(0, 16), (1024, 32)], batches=[(0, 128), (300, 192), (301, 256), (2500, 64)]),
    schedules(lengths=[(0, 16), (700, 48), (1500, 16)], batches=[(0, 100), (900, 250)]),
    schedules(lengths=[(0, 10), (50, 20), (60, 30), (61, 10)], batches=[(0, 30), (55, 60), (1900, 7)]),
]


@pytest.mark.parametrize("consumer", CASES)
@pytest.mark.parametrize("cycle_tokens", [300, 1000, 1999, 2048, 5000])
def test_parts_hold_the_updates_that_the_schedules_name(consumer: Consumer, cycle_tokens: int) -> None:
    start = 0
    for _ in range(8):
        parts = cycle_parts(consumer, start, cycle_tokens)
        assert flat(parts, consumer) == one_by_one(consumer, start, cycle_tokens)
        assert all(a.row_length != b.row_length for a, b in pairwise(parts))
        assert sum(part.tokens for part in parts) <= cycle_tokens
        if not parts:
            break
        start = parts[-1].start_token + parts[-1].tokens


def test_a_change_of_row_length_inside_a_cycle_makes_a_part_at_the_next_update() -> None:
    consumer = schedules(lengths=[(0, 16), (1000, 64)], batches=[(0, 192)])
    one, two = cycle_parts(consumer, 0, 3000)
    # Updates begin at 0, 192, ... 960 with rows of 16, and from 1,152 on with rows of 64.
    assert (one.row_length, one.updates, one.num_rows, one.start_token) == (16, 6, 72, 0)
    assert (two.row_length, two.updates, two.num_rows, two.start_token) == (64, 9, 27, 1152)


def test_a_batch_that_no_longer_fits_ends_the_cycle() -> None:
    growing = schedules(lengths=[(0, 10)], batches=[(0, 100), (400, 700)])
    (part,) = cycle_parts(growing, 0, 1000)
    assert (part.updates, part.tokens) == (4, 400)
    assert cycle_parts(growing, 400, 1000)[0].tokens == 700
    assert cycle_parts(growing, 400, 699) == ()
    # Nor does a smaller one fill what the last one left.
    shrinking = schedules(lengths=[(0, 10)], batches=[(0, 400), (800, 50)])
    assert [part.tokens for part in cycle_parts(shrinking, 0, 1000)] == [800]


@pytest.mark.parametrize("consumer", CASES)
def test_growing_a_schedule_leaves_every_planned_cycle_as_it_was(consumer: Consumer) -> None:
    start, planned = 0, []
    while len(planned) < 6 and (parts := cycle_parts(consumer, start, 1000)):
        planned.append((start, parts))
        start = parts[-1].start_token + parts[-1].tokens
    known = max(start, *(piece.start + 1 for piece in (*consumer.row_lengths, *consumer.batches)))
    lengths = [(piece.start, piece.value) for piece in consumer.row_lengths]
    batches = [(piece.start, piece.value) for piece in consumer.batches]
    for more_lengths, more_batches in (
        ([(known, 8)], []),
        ([], [(known, 16)]),
        ([(known, 3)], [(known, 6)]),
        ([(known + 1, 96)], [(known + 500, 96)]),
    ):
        grown = schedules(lengths=lengths + more_lengths, batches=batches + more_batches)
        assert all(cycle_parts(grown, first, 1000) == parts for first, parts in planned)


@pytest.mark.parametrize(
    ("tokens", "segments"), [([1000], 7), ([10, 990], 8), ([500, 499, 1], 4), ([1, 1], 1)]
)
def test_segments_are_spread_by_tokens(tokens: list[int], segments: int) -> None:
    parts = [PartRows(row_length=1, num_rows=n, updates=1, start_token=0) for n in tokens]
    found = spread_segments(parts, segments)
    assert all(1 <= number <= part.num_rows for number, part in zip(found, parts, strict=True))
    for number, part in zip(found, parts, strict=True):
        assert abs(number - segments * part.tokens / sum(tokens)) <= 1
    if len(tokens) == 1:
        assert found == (segments,)
