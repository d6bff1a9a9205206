"""Which source and which window of its stream each row of a part is.

The part's slice of the source sequence is cut into segments; inside a segment, a source's appearances take
its windows in a seeded order. Pure and small: planner and readers compute the same order and compare digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.plan.order import permutation, quota_sequence, window_counts
from trainer_core.data.sources import Piece


@dataclass(frozen=True, kw_only=True)
class PartOrder:
    """The order of a part's rows; windows and counts are worked out when they are asked for."""

    names: tuple[str, ...]
    """Sources by index."""
    sequence: NDArray[np.uint16]
    """Source index of each row."""
    bounds: tuple[int, ...]
    """First row of each segment, and the number of rows at the end."""
    seed: int
    """Seed of the data line."""
    cycle: int
    """Cycle, counted from 0."""
    part: int
    """Part of the cycle, counted from 0."""

    @cached_property
    def windows(self) -> NDArray[np.int64]:
        """Window of each row within its source's stream of its segment."""
        windows = np.empty(len(self.sequence), dtype=np.int64)
        for segment, (first, last) in enumerate(pairwise(self.bounds)):
            shuffled = [
                permutation(self.seed, "windows", self.cycle, self.part, segment, name, n=count)
                for name, count in self.segment_rows(segment).items()
            ]
            windows[first + self.sequence[first:last].argsort(kind="stable")] = np.concatenate(shuffled)
        return windows

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows by segment and source."""
        counts = [window_counts(self.sequence[a:b], len(self.names)) for a, b in pairwise(self.bounds)]
        return np.stack(counts)

    def segment_rows(self, segment: int) -> dict[str, int]:
        """Rows per source in a segment."""
        return self._named(self.counts[segment])

    def rows(self) -> dict[str, int]:
        """Rows per source in the part."""
        return self._named(self.counts.sum(axis=0))

    def digest(self) -> str:
        """Hex blake2b of everything that decides which row comes when."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update("\0".join(self.names).encode("utf-8"))
        digest.update(np.array(self.bounds, dtype="<i8").tobytes())
        digest.update(self.sequence.astype("<u2").tobytes())
        digest.update(self.windows.astype("<i8").tobytes())
        return digest.hexdigest()

    def _named(self, counts: NDArray[np.int64]) -> dict[str, int]:
        return {name: count for name, count in zip(self.names, counts.tolist(), strict=True) if count}


def segment_bounds(num_rows: int, segments: int) -> tuple[int, ...]:
    """Cut a part into at most `segments` slices of nearly equal numbers of rows, none empty."""
    segments = max(1, min(segments, num_rows))
    return tuple(num_rows * index // segments for index in range(segments + 1))


def part_order(
    piece: Piece, *, seed: int, cycle: int, part: int, order_start: int, bounds: Sequence[int]
) -> PartOrder:
    """The order of a part whose rows are order_start .. order_start + bounds[-1] of the piece's sequence."""
    return PartOrder(
        names=tuple(piece.shares),
        sequence=quota_sequence(list(piece.shares.values()), order_start, bounds[-1]),
        bounds=tuple(bounds),
        seed=seed,
        cycle=cycle,
        part=part,
    )
