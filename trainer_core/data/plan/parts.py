"""Which rows a cycle has: runs of whole updates by row length, from the consumer's schedules alone.

An update's batch and row length are read at its first token, so every update holds exactly its batch rounded
down to whole rows. A cycle ends where the next update does not fit. It also ends where another one like the
last would not fit, whatever comes next: so a schedule that grows behind the planned tokens leaves every
planned cycle as it was. Pure; knows neither sources nor files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol


class Schedules(Protocol):
    """What a consumer says about its rows."""

    def row_length(self, tokens: int) -> int:
        """Row length of the update that starts at a token count."""
        ...

    def batch(self, tokens: int) -> int:
        """Tokens per update of the update that starts at a token count."""
        ...

    def next_change(self, tokens: int) -> int | None:
        """First token count behind `tokens` at which either may be another, or None."""
        ...


@dataclass(frozen=True, kw_only=True)
class PartRows:
    """A run of rows of one length inside a cycle."""

    row_length: int
    """Targets per row."""
    num_rows: int
    """Rows, a whole number of updates."""
    updates: int
    """Updates they make."""
    start_token: int
    """Tokens trained by the line before the part."""

    @property
    def tokens(self) -> int:
        """Targets of all rows."""
        return self.num_rows * self.row_length


def cycle_parts(schedules: Schedules, start_token: int, cycle_tokens: int) -> tuple[PartRows, ...]:
    """The parts of a cycle that begins at a token count; none when it holds no whole update."""
    parts: list[PartRows] = []
    tokens, end = start_token, start_token + cycle_tokens
    last_step = 0
    while True:
        length = schedules.row_length(tokens)
        rows = schedules.batch(tokens) // length
        step = rows * length
        if not step or tokens + max(step, last_step) > end:
            return tuple(parts)
        updates, last_step = (end - tokens) // step, step
        change = schedules.next_change(tokens)
        if change is not None:
            updates = min(updates, -(-(change - tokens) // step))
        run = PartRows(row_length=length, num_rows=updates * rows, updates=updates, start_token=tokens)
        if parts and parts[-1].row_length == length:
            parts[-1] = replace(
                parts[-1], num_rows=parts[-1].num_rows + run.num_rows, updates=parts[-1].updates + updates
            )
        else:
            parts.append(run)
        tokens += run.tokens


def spread_segments(parts: Sequence[PartRows], segments: int) -> tuple[int, ...]:
    """Segments of each part, in proportion to their tokens: at least one, at most one per row."""
    ends = list(accumulate(part.tokens for part in parts))
    cuts = [0, *((2 * segments * end + ends[-1]) // (2 * ends[-1]) for end in ends)]
    return tuple(
        max(1, min(cuts[index + 1] - cuts[index], part.num_rows)) for index, part in enumerate(parts)
    )
