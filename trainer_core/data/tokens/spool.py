"""Tokens of a file on their way from reading order to shuffled order, through a file on disk.

Holds in memory four bytes per document, and of the tokens one slice. The spool's file is temporary and its
maker removes it. Never knows what a token means.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SLICE_TOKENS = 1 << 20


class Spool:
    """Documents behind each other on disk; written front to back, read in any order."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        """Open a new file for tokens of this type."""
        self._dtype = dtype
        self._lengths = array("I")
        self._file = open(path, "w+b")  # noqa: SIM115 (closed by __exit__)

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        """Documents so far."""
        return len(self._lengths)

    def append(self, tokens: NDArray[Any], lengths: Sequence[int]) -> None:
        """Add documents that lie behind each other."""
        self._file.write(np.ascontiguousarray(tokens, dtype=self._dtype).data)
        self._lengths.extend(lengths)

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document in reading order."""
        return np.array(self._lengths, dtype=np.int64)

    def gather(self, order: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """The documents in another order, in slices of bounded size or of one document."""
        self._file.flush()
        lengths = self.lengths()
        offsets = (np.cumsum(lengths) - lengths)[order] * self._dtype.itemsize
        lengths = lengths[order]
        # Plain reads: of a memory map every page that was ever touched would count as used memory.
        first = 0
        while first < len(order):
            ends = np.cumsum(lengths[first : first + _SLICE_TOKENS])
            count = max(1, int(np.searchsorted(ends, _SLICE_TOKENS, side="right")))
            tokens = np.empty(int(ends[count - 1]), dtype=self._dtype)
            self._read(tokens, offsets[first : first + count], ends[:count])
            yield tokens
            first += count

    def _read(self, tokens: NDArray[Any], offsets: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        descriptor, view = self._file.fileno(), tokens.data.cast("B")
        start = 0
        for offset, end in zip(offsets.tolist(), (ends * self._dtype.itemsize).tolist(), strict=True):
            while start < end:
                num_bytes = os.preadv(descriptor, [view[start:end]], offset)
                assert num_bytes, "the spool is shorter than what was written"
                start += num_bytes
                offset += num_bytes
