"""What the training loop asks of a source of rows, and the values that pass between them.

A row is L+1 consecutive tokens; rows follow each other with stride L, so every token is a target once. A
source is pure: the same position and count give the same rows, in any process, any number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Position:
    """The next row to train."""

    cycle: int
    """Cycle, counted from 0."""
    part: int
    """Part of the cycle, counted from 0."""
    row: int
    """Rows of the part already trained."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A run of rows of one length inside a cycle."""

    row_length: int
    """Targets per row (L); a row holds L+1 tokens."""
    num_rows: int
    """Rows of the part, a whole number of updates."""
    updates: int
    """Updates that the part was planned for."""
    start_token: int
    """Tokens trained by the line before the part."""
    order_digest: str
    """blake2b of the order of rows: source and window of each."""
    manifest_sha256: str
    """sha256 of the manifest of the cycle."""


@dataclass(frozen=True, kw_only=True)
class RowBatch:
    """Rows of one update, in the order in which they are trained."""

    ids: Ids
    """Tokens [count, L+1]; inputs are [:, :-1], targets [:, 1:]. The memory is used again once no
    array or tensor refers to it any more."""
    source_rows: dict[str, int]
    """Rows per source among them."""
    samples: str
    """Digest of the rows' sample ids (cycle, part, source, segment, window)."""


@dataclass(frozen=True, kw_only=True)
class StratumRows:
    """Validation rows of one stratum."""

    name: str
    """Stratum within its source."""
    share: float
    """Weight within its source; the weights of a source's strata sum to 1."""
    ids: Ids
    """Tokens [n, L+1] of held-out text."""


@dataclass(frozen=True, kw_only=True)
class ValidationRows:
    """Pinned held-out rows of one length."""

    row_length: int
    """Targets per row."""
    sources: Mapping[str, list[StratumRows]]
    """Rows by source and stratum; every source has at least one row."""
    recipe: Mapping[str, float]
    """Share of each source in the recipe in force; sums to 1."""
    sha256: str
    """Digest of all rows and weights."""


class RowSource(Protocol):
    """A source of rows in cycles and parts."""

    def ready(self, cycle: int) -> bool:
        """Whether the rows of a cycle can be read now."""
        ...

    def parts(self, cycle: int) -> tuple[Part, ...]:
        """The parts of a ready cycle."""
        ...

    def rows(self, position: Position, count: int) -> RowBatch:
        """`count` rows from a position on, never past the end of its part."""
        ...

    def validation(self, row_length: int, cycle: int) -> ValidationRows:
        """The pinned held-out rows of a length, weighted by the recipe in force at a cycle."""
        ...

    def identity(self) -> dict[str, Any]:
        """What a checkpoint compares to be sure that it continues on the same data."""
        ...

    def close(self) -> None:
        """Release files; the source is not used afterwards."""
        ...
