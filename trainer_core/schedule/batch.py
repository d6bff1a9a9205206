"""Updates as pure functions of the tokens trained: how many rows each has, and where its values change.

Every update has one row length and one number of tokens, both read at the token count at which it begins. So
the token counts at which updates begin follow from the schedule alone, whatever cycles they lie in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer_core.schedule.pieces import ValuePiece, piece_at


@dataclass(frozen=True, kw_only=True)
class UpdateSpan:
    """A run of updates that all have the same size and row length."""

    start: int
    """Tokens trained before its first update."""
    end: int | None
    """Tokens trained after its last update; None for a span without an end."""
    tokens: int
    """Tokens of each of its updates."""
    row_length: int
    """Their row length."""


def update_spans(
    batches: Sequence[ValuePiece], row_lengths: Sequence[ValuePiece], *, end: int | None
) -> tuple[UpdateSpan, ...]:
    """The spans of a line in order, up to the one in which its schedule ends (`end`; None = never).

    A change takes effect with the first update that begins at or after it. All values are at least 1.
    """
    spans: list[UpdateSpan] = []
    start: int | None = 0
    while start is not None and (end is None or start < end):
        batch, length = piece_at(batches, start), piece_at(row_lengths, start)
        borders = [piece.end for piece in (batch, length) if piece.end is not None and piece.end > start]
        after = start + -((start - min(borders)) // batch.value) * batch.value if borders else None
        spans.append(UpdateSpan(start=start, end=after, tokens=batch.value, row_length=length.value))
        start = after
    return tuple(spans)


def whole_updates(spans: Sequence[UpdateSpan], row_length: int, start: int, end: int) -> bool:
    """Whether rows of a length between two token counts are whole updates, as the spans have them there."""
    inside = [span for span in spans if span.start < end and (span.end is None or start < span.end)]
    borders = [
        (at - span.start) % span.tokens
        for span in inside
        for at in (start, end)
        if span.start <= at and (span.end is None or at <= span.end)
    ]
    return not any(borders) and all(span.row_length == row_length for span in inside)


def update_rows(
    *, tokens_per_update: int, row_length: int, tokens: int, end_tokens: int | None, rows_left_in_part: int
) -> int:
    """Rows of the update that starts at `tokens` tokens; 0 when the schedule has no room for another row.

    An update never crosses the end of its part. It is short only where the schedule ends when it is trained:
    then it takes the whole rows that still fit (a schedule that grows later goes on from there).
    """
    rows = max(1, tokens_per_update // row_length)
    if end_tokens is not None:
        rows = min(rows, (end_tokens - tokens) // row_length)
    return max(0, min(rows, rows_left_in_part))
