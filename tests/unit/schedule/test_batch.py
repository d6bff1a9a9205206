"""Where updates begin, and which size and row length they have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core.schedule.batch import UpdateSpan, update_spans, whole_updates
from trainer_core.schedule.pieces import ValuePiece, piece_at, runs


def pieces(*values):
    """Pieces of (start, value), each up to the next, the last one open."""
    ends = [start for start, _ in values[1:]] + [None]
    return tuple(
        ValuePiece(start=start, end=end, value=value)
        for (start, value), end in zip(values, ends, strict=True)
    )


def span(start, end, tokens, row_length):
    return UpdateSpan(start=start, end=end, tokens=tokens, row_length=row_length)


@pytest.mark.parametrize(
    ("batches", "lengths", "end", "expected"),
    [
        (pieces((0, 64)), pieces((0, 16)), None, [span(0, None, 64, 16)]),
        (pieces((0, 64), (128, 96)), pieces((0, 16)), None, [span(0, 128, 64, 16), span(128, None, 96, 16)]),
        # A change between two updates waits for the next one.
        (pieces((0, 64), (129, 96)), pieces((0, 16)), None, [span(0, 192, 64, 16), span(192, None, 96, 16)]),
        (pieces((0, 64)), pieces((0, 16), (100, 32)), None, [span(0, 128, 64, 16), span(128, None, 64, 32)]),
        # Both change; the length one update later.
        (
            pieces((0, 64), (128, 32)),
            pieces((0, 16), (160, 8)),
            None,
            [span(0, 128, 64, 16), span(128, 160, 32, 16), span(160, None, 32, 8)],
        ),
        # A piece in which no update begins is passed over.
        (
            pieces((0, 64), (100, 48), (120, 32)),
            pieces((0, 16)),
            None,
            [span(0, 128, 64, 16), span(128, None, 32, 16)],
        ),
        # Nothing begins at or after the end.
        (pieces((0, 64), (128, 96)), pieces((0, 16)), 128, [span(0, 128, 64, 16)]),
        (pieces((0, 64), (128, 96)), pieces((0, 16)), 100, [span(0, 128, 64, 16)]),
        (pieces((0, 64)), pieces((0, 16)), 0, []),
    ],
)
def test_spans(batches, lengths, end, expected):
    assert list(update_spans(batches, lengths, end=end)) == expected


schedules = st.lists(
    st.tuples(st.integers(1, 400), st.integers(1, 90)), min_size=1, max_size=5, unique_by=lambda item: item[0]
).map(lambda items: pieces(*((0 if i == 0 else at, v) for i, (at, v) in enumerate(sorted(items)))))


@given(schedules, schedules, st.integers(1, 900))
def test_spans_are_what_a_walk_update_by_update_gives(batches, lengths, end):
    walked, tokens = [], 0
    while tokens < end:
        size, length = piece_at(batches, tokens).value, piece_at(lengths, tokens).value
        walked.append((tokens, size, length))
        tokens += size
    listed = [
        (at, s.tokens, s.row_length)
        for s in update_spans(batches, lengths, end=end)
        for at in range(s.start, end if s.end is None else min(s.end, end), s.tokens)
    ]
    assert listed == walked


def test_runs_join_equal_neighbours_and_never_end():
    assert runs(pieces((0, 16), (10, 16), (20, 32), (30, 32))) == pieces((0, 16), (20, 32))
    assert runs(pieces((0, 16), (10, 32), (20, 16))) == pieces((0, 16), (10, 32), (20, 16))
    closed = (ValuePiece(start=0, end=10, value=16), ValuePiece(start=10, end=20, value=32))
    assert runs(closed) == pieces((0, 16), (10, 32))
    assert runs(()) == ()


@pytest.mark.parametrize(
    ("row_length", "start", "end", "whole"),
    [
        (16, 0, 128, True),
        (16, 64, 128, True),
        (16, 0, 192, False),  # rows of 32 begin at 128
        (16, 0, 120, False),
        (16, 32, 128, False),
        (32, 128, 256, True),
        (16, 128, 256, False),
        (32, 128, 352, True),  # two batches, one length
        (32, 192, 192 + 96, False),
        (32, 256, 256 + 5 * 96, True),
        (32, 256, 320, False),
    ],
)
def test_whole_updates(row_length, start, end, whole):
    spans = update_spans(pieces((0, 64), (224, 96)), pieces((0, 16), (100, 32)), end=None)
    assert [(s.start, s.tokens, s.row_length) for s in spans] == [(0, 64, 16), (128, 64, 32), (256, 96, 32)]
    assert whole_updates(spans, row_length, start, end) is whole
