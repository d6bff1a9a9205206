"""Which source and which window of its stream each row of a part is.

The part's slice of the source sequence is cut into segments; inside a segment, a source's appearances take
its windows in a seeded order. Pure and small: planner and readers compute the same order and compare digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.order import permutation, quota_sequence, window_counts
from trainer_core.data.sources import Piece


@dataclass(frozen=True, kw_only=True)
class PartOrder:
    """The order of a part's rows."""

    names: tuple[str, ...]
    """Sources by index."""
    sequence: NDArray[np.uint16]
    """Source index of each row."""
    bounds: tuple[int, ...]
    """First row of each segment, and the number of rows at the end."""
    windows: NDArray[np.int64]
    """Window of each row within its source's stream of its segment."""

    def segment_rows(self, segment: int) -> dict[str, int]:
        """Rows per source in a segment."""
        return self._counts(*self.bounds[segment : segment + 2])

    def rows(self) -> dict[str, int]:
        """Rows per source in the part."""
        return self._counts(0, len(self.sequence))

    def digest(self) -> str:
        """Hex blake2b of everything that decides which row comes when."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update("\0".join(self.names).encode("utf-8"))
        digest.update(np.array(self.bounds, dtype="<i8").tobytes())
        digest.update(self.sequence.astype("<u2").tobytes())
        digest.update(self.windows.astype("<i8").tobytes())
        return digest.hexdigest()

    def _counts(self, first: int, last: int) -> dict[str, int]:
        counts = window_counts(self.sequence[first:last], len(self.names)).tolist()
        return {name: count for name, count in zip(self.names, counts, strict=True) if count}


def segment_bounds(num_rows: int, segments: int) -> tuple[int, ...]:
    """Cut a part into at most `segments` slices of nearly equal numbers of rows, none empty."""
    segments = max(1, min(segments, num_rows))
    return tuple(num_rows * index // segments for index in range(segments + 1))


def part_order(
    piece: Piece, *, seed: int, cycle: int, part: int, order_start: int, bounds: Sequence[int]
) -> PartOrder:
    """The order of a part whose rows are order_start .. order_start + bounds[-1] of the piece's sequence."""
    names = tuple(piece.shares)
    sequence = quota_sequence(list(piece.shares.values()), order_start, bounds[-1])
    windows = np.empty(len(sequence), dtype=np.int64)
    for segment, (first, last) in enumerate(pairwise(bounds)):
        for index, name in enumerate(names):
            rows = np.flatnonzero(sequence[first:last] == index) + first
            windows[rows] = permutation(seed, "windows", cycle, part, segment, name, n=len(rows))
    return PartOrder(names=names, sequence=sequence, bounds=tuple(bounds), windows=windows)
