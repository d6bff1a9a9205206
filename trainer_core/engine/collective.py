"""What the step asks of the ranks that train together, and the answer of a single process.

Every rank holds whole P and G and owns one contiguous shard of them (the layout is padded so that shards are
whole blocks). Sums over ranks are pairwise in rank order, so that the size of the world changes no bit.
None of these calls is made inside a recorded part.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Collective(Protocol):
    """The ranks of a run."""

    @property
    def world(self) -> int:
        """Number of ranks, a power of two."""
        ...

    @property
    def rank(self) -> int:
        """Index of this one."""
        ...

    def all_to_all_sum(self, flat: Tensor) -> None:
        """Puts into this rank's shard of `flat` its sum over all ranks; the rest of `flat` is void then."""
        ...

    def all_gather(self, flat: Tensor) -> None:
        """Puts into every shard of `flat` what the rank that owns it has there."""
        ...

    def sum_counts(self, count: int) -> int:
        """Sum of a number over all ranks, on the host."""
        ...

    def broadcast_flags(self, flags: tuple[int, ...]) -> tuple[int, ...]:
        """The flags of rank 0, which decides stops, checkpoints and stages for all."""
        ...


class SingleProcess:
    """A run of one rank: everything is here already."""

    world = 1
    rank = 0

    def all_to_all_sum(self, flat: Tensor) -> None:
        """The sum over one rank is in place."""

    def all_gather(self, flat: Tensor) -> None:
        """The one shard is in place."""

    def sum_counts(self, count: int) -> int:
        return count

    def broadcast_flags(self, flags: tuple[int, ...]) -> tuple[int, ...]:
        return flags


def shard(size: int, collective: Collective) -> tuple[int, int]:
    """First and one past the last element that a rank owns of `size` elements."""
    assert size % collective.world == 0, (size, collective.world)
    part = size // collective.world
    return collective.rank * part, (collective.rank + 1) * part
