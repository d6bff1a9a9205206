"""Which micro-batch shapes of a row length are worth measuring, and which of the measured ones wins.

Pure: knows sizes and figures, no model and no device. A shape is the rows of a micro-batch and what the
backward pass recomputes; an update of a line is the same for every shape but for rounding.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer_core.schedule.batch import UpdateSpan

MEASURED = 4
"""Sizes of one mode that are measured: the largest that fit by their estimate."""

MARGIN = 0.05
"""Share of the room that a shape must leave free: what a measurement of seconds does not meet."""

KEEP = 0.02
"""The shape that a line has stays unless another is faster by more than this: noise changes no bits."""


def size_text(num_bytes: int) -> str:
    """Bytes for people."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A micro-batch shape of one row length."""

    length: int
    """Tokens of a row."""
    rows: int
    """Rows of a micro-batch."""
    ac: str
    """What the backward pass recomputes."""

    def __str__(self) -> str:
        return f"{self.rows} x {self.length} (ac {self.ac})"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was measured of a candidate."""

    candidate: Candidate
    """The shape."""
    estimate_bytes: int | None
    """Peak memory by the trace without a device, where this shape was traced: flat state and activations."""
    tokens_per_second: float | None = None
    """Tokens of whole updates per second (of CPU time on a CPU); None when it did not get that far."""
    peak_bytes: int | None = None
    """Largest memory of the process on the device; None when it did not get that far."""
    problem: str | None = None
    """Why it cannot be used: out of memory, crashed, silent; None when it ran."""

    def fits(self, room: int) -> bool:
        """Whether it ran and left the margin of `room` bytes free."""
        return self.peak_bytes is not None and self.peak_bytes <= (1 - MARGIN) * room

    def why_not(self, room: int) -> str | None:
        """Why it does not fit, in words; None when it does."""
        if self.problem is not None or self.peak_bytes is None:
            return self.problem or "was not measured"
        if self.fits(room):
            return None
        share = f"{MARGIN:.0%} of {size_text(room)}"
        return f"takes {size_text(self.peak_bytes)}, which does not leave {share} free"


def rows_of_updates(spans: Sequence[UpdateSpan], length: int) -> tuple[int, ...]:
    """Rows of an update in every piece of the batch ramp that has this row length, smallest first."""
    return tuple(sorted({span.tokens // length for span in spans if span.row_length == length}))


def sizes(counts: Sequence[int], present: int) -> tuple[int, ...]:
    """Rows of a micro-batch worth measuring, largest first, for updates of so many rows each.

    Those that cut every update into equal micro-batches: one graph serves them all. Where there are few (a
    prime number of rows, pieces without a common divisor), also those that cut the smallest update into few
    micro-batches with a short last one. `present` is the line's own and always among them.
    """
    common = math.gcd(*counts)
    found = {rows for rows in range(1, common + 1) if common % rows == 0}
    if len(found) < MEASURED:
        found |= {-(-counts[0] // pieces) for pieces in range(1, MEASURED + 1)}
    return tuple(sorted({*found, present}, reverse=True))


def shortlist(sizes: Sequence[int], fits: Callable[[int], bool], *, present: int | None) -> list[int]:
    """The largest of `sizes` (largest first) that fit by their estimate, and the line's own if it does.

    Memory grows with the rows, so few sizes are asked for: long rows of a large model take time to trace.
    """
    first = 0 if not sizes or fits(sizes[0]) else bisect_left(sizes, True, key=fits)
    own = [rows for rows in sizes[first + MEASURED :] if rows == present]
    return [*sizes[first : first + MEASURED], *own]


def choose(trials: Sequence[Trial], *, room: int, present: Candidate) -> Trial | None:
    """The fastest trial that fits, or the line's own shape where it is as good; None when none fits."""
    fitting = [trial for trial in trials if trial.fits(room)]
    best = max(fitting, key=_speed, default=None)
    own = next((trial for trial in fitting if trial.candidate == present), None)
    return own if own is not None and best is not None and _speed(own) >= (1 - KEEP) * _speed(best) else best


def _speed(trial: Trial) -> float:
    assert trial.tokens_per_second is not None
    return trial.tokens_per_second
