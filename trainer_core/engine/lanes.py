"""Sums whose order does not depend on how many ranks share the work.

The micro-batches of an update have one order and are cut into lanes, a fixed power of two. A lane is summed
one micro-batch after another, lanes are combined pairwise: ranks that own equal runs of lanes build the same
tree, the lower part of it alone and the upper part together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def cut(items: Sequence[T], lanes: int) -> list[Sequence[T]]:
    """The items of each lane, in order; the first lanes have one more where the number does not divide."""
    size, more = divmod(len(items), lanes)
    edges = [lane * size + min(lane, more) for lane in range(lanes + 1)]
    return [items[edges[lane] : edges[lane + 1]] for lane in range(lanes)]


def owned(lanes: int, world: int, rank: int) -> range:
    """The lanes of a rank."""
    assert lanes & (lanes - 1) == 0 and lanes % world == 0, (lanes, world)
    return range(rank * lanes // world, (rank + 1) * lanes // world)


def tree_sum(parts: Tensor) -> Tensor:
    """Sum over the first axis, whose length is a power of two, pairwise in order."""
    while parts.shape[0] > 1:
        parts = parts[0::2] + parts[1::2]
    return parts[0]


class LaneSums:
    """Combines accumulators lane by lane: one lane more costs no memory, twice the lanes one more copy.

    Between lanes the accumulators are zero; after the last of 2^n lanes they hold the sum of all.
    """

    def __init__(self, accumulators: Sequence[Tensor]) -> None:
        self._accumulators = accumulators
        self._spare: list[list[Tensor]] = []
        self._waiting: list[tuple[int, list[Tensor]]] = []

    @torch.no_grad()
    def end_lane(self, *, last: bool) -> None:
        """Takes in the lane that the accumulators hold."""
        level = 0
        while self._waiting and self._waiting[-1][0] == level:
            _, earlier = self._waiting.pop()
            for accumulator, before in zip(self._accumulators, earlier, strict=True):
                accumulator.add_(before)
            self._spare.append(earlier)
            level += 1
        if last:
            assert not self._waiting, "the number of lanes is not a power of two"
            return
        kept = self._spare.pop() if self._spare else [torch.empty_like(a) for a in self._accumulators]
        for accumulator, copy in zip(self._accumulators, kept, strict=True):
            copy.copy_(accumulator)
            accumulator.zero_()
        self._waiting.append((level, kept))
