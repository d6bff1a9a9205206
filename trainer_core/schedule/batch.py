"""Rows of an update as a pure function of the tokens trained and of where its part ends."""

from __future__ import annotations


def update_rows(
    *, tokens_per_update: int, row_length: int, tokens: int, end_tokens: int | None, rows_left_in_part: int
) -> int:
    """Rows of the update that starts at `tokens` tokens; 0 when the schedule has no room for another row.

    An update never crosses the end of its part. It is short only where the schedule ends when it is trained:
    then it takes the whole rows that still fit (a schedule that grows later goes on from there).
    """
    rows = tokens_per_update // row_length
    if end_tokens is not None:
        rows = min(rows, (end_tokens - tokens) // row_length)
    return max(0, min(rows, rows_left_in_part))
