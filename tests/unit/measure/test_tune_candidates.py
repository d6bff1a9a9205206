"""Which shapes are measured, and which of them wins."""

import pytest

from trainer_core.measure.candidates import (
    Candidate,
    Trial,
    choose,
    rows_of_updates,
    shortlist,
    sizes,
)
from trainer_core.schedule.batch import UpdateSpan

GB = 10**9
PRESENT = Candidate(length=16, rows=4, ac="none")


def trial(rows: int, speed: float | None, *, ac: str = "none", peak: int = GB, problem=None) -> Trial:
    return Trial(
        candidate=Candidate(length=16, rows=rows, ac=ac),
        estimate_bytes=None,
        tokens_per_second=speed,
        peak_bytes=None if speed is None else peak,
        problem=problem,
    )


@pytest.mark.parametrize(
    ("counts", "present", "expected"),
    [
        ((8,), 8, (8, 4, 2, 1)),
        ((128,), 32, (128, 64, 32, 16, 8, 4, 2, 1)),
        ((256, 384), 128, (128, 64, 32, 16, 8, 4, 2, 1)),
        ((6,), 4, (6, 4, 3, 2, 1)),  # the line's own, though it cuts the update unequally
        ((7,), 7, (7, 4, 3, 2, 1)),
        ((7, 12), 1, (7, 4, 3, 2, 1)),
        ((1,), 4, (4, 1)),
    ],
)
def test_sizes_cut_updates_into_equal_or_few_micro_batches(counts, present, expected) -> None:
    assert sizes(counts, present) == expected


def test_rows_of_the_updates_of_a_length() -> None:
    spans = [
        UpdateSpan(start=0, end=640, tokens=64, row_length=16),
        UpdateSpan(start=640, end=1280, tokens=128, row_length=16),
        UpdateSpan(start=1280, end=2560, tokens=128, row_length=32),
        UpdateSpan(start=2560, end=None, tokens=64, row_length=16),
    ]
    assert rows_of_updates(spans, 16) == (4, 8)
    assert rows_of_updates(spans, 32) == (4,)


@pytest.mark.parametrize("largest", range(130))
def test_the_largest_that_fit_are_measured(largest: int) -> None:
    every = (128, 64, 32, 16, 8, 4, 2, 1)
    asked: list[int] = []

    def fits(rows: int) -> bool:
        asked.append(rows)
        return rows <= largest

    fitting = [rows for rows in every if rows <= largest]
    assert shortlist(every, fits, present=None) == fitting[:4]
    assert len(asked) <= 5, "few are traced"
    expected = fitting[:4] + [rows for rows in fitting[4:] if rows == 2]
    assert shortlist(every, fits, present=2) == expected


def test_nothing_to_choose_from() -> None:
    assert shortlist((), lambda rows: True, present=1) == []
    assert choose([], room=GB, present=PRESENT) is None
    assert choose([trial(4, None, problem="crashed")], room=10 * GB, present=PRESENT) is None


def test_the_fastest_that_leaves_the_margin_wins() -> None:
    trials = [
        trial(32, 900.0, peak=96 * GB),
        trial(16, 800.0, peak=95 * GB),
        trial(8, 700.0, peak=40 * GB),
        trial(64, None, problem="out of memory"),
    ]
    best = choose(trials, room=100 * GB, present=PRESENT)
    assert best is not None and best.candidate.rows == 16
    assert trials[0].why_not(100 * GB) == "takes 96.00 GB, which does not leave 5% of 100.00 GB free"
    assert trials[1].why_not(100 * GB) is None
    assert trials[3].why_not(100 * GB) == "out of memory"


@pytest.mark.parametrize(("speed", "rows"), [(97.9, 8), (98.1, 4), (100.0, 4), (110.0, 4)])
def test_noise_does_not_change_the_shape_of_a_line(speed: float, rows: int) -> None:
    trials = [trial(8, 100.0), trial(4, speed), trial(4, 120.0, ac="full", peak=99 * GB)]
    best = choose(trials, room=100 * GB, present=PRESENT)
    assert best is not None and best.candidate == Candidate(length=16, rows=rows, ac="none")
