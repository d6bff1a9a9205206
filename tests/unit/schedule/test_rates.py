"""Rates, decay and batch as pure functions of the token count."""

import pytest

from trainer_core.schedule.batch import update_rows
from trainer_core.schedule.pieces import end_of, piece_at, problems
from trainer_core.schedule.rates import RatePiece, average_weight, learning_rate, weight_decay

PIECES = (
    RatePiece(start=0, end=100, kind="warmup"),
    RatePiece(start=100, end=300, kind="constant"),
    RatePiece(start=300, end=400, kind="decay"),
)


@pytest.mark.parametrize(
    ("tokens", "rate"),
    [(1, 0.02), (50, 1.0), (100, 2.0), (101, 2.0), (300, 2.0), (350, 1.1), (400, 0.2), (500, 0.2)],
)
def test_rate_at_an_updates_end(tokens, rate):
    assert learning_rate(PIECES, tokens, peak_lr=2.0, min_lr=0.2) == pytest.approx(rate, rel=1e-12)


def test_an_open_schedule_stays_at_its_last_piece():
    pieces = (*PIECES[:1], RatePiece(start=100, end=None, kind="constant"))
    assert learning_rate(pieces, 10**15, peak_lr=2.0, min_lr=0.2) == 2.0
    assert end_of(pieces) is None
    assert end_of(PIECES) == 400


def test_piece_at_is_half_open():
    assert piece_at(PIECES, 99) is PIECES[0]
    assert piece_at(PIECES, 100) is PIECES[1]


def test_all_problems_of_a_schedule_are_listed():
    pieces = (
        RatePiece(start=5, end=None, kind="warmup"),
        RatePiece(start=9, end=9, kind="constant"),
    )
    text = "\n".join(problems(pieces, "schedule"))
    assert "schedule[0].from: the first piece begins at 0" in text
    assert "schedule[0].to: this piece is open (null), and only the last may be; give it an end" in text
    assert "schedule[1]: to (9) must lie after from (9)" in text
    assert "schedule[1].from" not in text
    assert problems((), "schedule") == ["schedule: expected at least one piece"]


def test_weight_decay_follows_the_batch_only_when_asked():
    assert weight_decay(0.1, update_tokens=512, decay_batch=None) == 0.1
    assert weight_decay(0.1, update_tokens=262_144, decay_batch=1_048_576) == 0.025
    assert weight_decay(0.1, update_tokens=393_216, decay_batch=1_048_576) == pytest.approx(0.0375)


@pytest.mark.parametrize(
    ("tokens", "end", "left", "rows"),
    [(0, None, 100, 8), (0, None, 3, 3), (960, 1_024, 100, 2), (992, 1_024, 100, 1), (1_024, 1_024, 100, 0)],
)
def test_rows_of_an_update(tokens, end, left, rows):
    found = update_rows(
        tokens_per_update=256, row_length=32, tokens=tokens, end_tokens=end, rows_left_in_part=left
    )
    assert found == rows


def test_an_average_is_a_copy_up_to_its_start_and_then_moves_by_tokens():
    horizon = {"horizon_tokens": 2000, "from_tokens": 300}
    assert average_weight(100, update_tokens=100, **horizon) == 1.0
    assert average_weight(300, update_tokens=100, **horizon) == 1.0
    assert average_weight(301, update_tokens=100, **horizon) == 0.05
    assert average_weight(700, update_tokens=200, **horizon) == 0.1
