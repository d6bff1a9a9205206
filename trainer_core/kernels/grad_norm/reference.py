"""The specification of the gradient norm and of what follows from it for the update, without a host read.

Sums of squares in two levels of fixed order: 1024-element blocks, then the blocks of each segment. A flat
vector_norm is wrong by percents on long buffers (its float32 running sum saturates); sums over 1024 elements
are not, and everything above them is float64. The layer norms come out of the same pass. Products and
counters move only with what they count, so a skipped update is as if it had never been.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 1024
"""Elements of a block; each parameter starts on one, so no block spans two."""

CLIP_EPSILON = 1e-6
"""Added to the norm that the clip is divided by, as torch's clip_grad_norm_ does."""


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Ranges of blocks that a norm is reported for, by label; between them they hold every parameter once."""

    bounds: tuple[tuple[int, int], ...]
    """First block and one past the last block of each segment."""
    labels: tuple[int, ...]
    """Index of each segment's label; labels are numbered by first appearance."""

    @property
    def num_labels(self) -> int:
        """Number of labels."""
        return max(self.labels) + 1


@dataclass(frozen=True, kw_only=True)
class NormState:
    """What the norm reads beside the gradients, and what it leaves for the update; all on the device."""

    max_norm: Tensor
    """Largest norm that is not clipped, float64 scalar; inf = no clipping."""
    betas: Tensor
    """beta1 and beta2 of this update [2], float64."""
    norms: Tensor
    """Result [1 + num_labels], float64: the global norm, then the norm of each label."""
    ok: Tensor
    """Result [1], bool: whether the global norm is finite, so that the update applies."""
    clip: Tensor
    """Result [1], float64: factor on the gradient, min(1, max_norm / (norm + 1e-6))."""
    products: Tensor
    """State [2], float64: beta1^t and beta2^t over the applied updates."""
    counters: Tensor
    """State [3], int64: applied updates, skipped updates, skipped updates since the last applied one."""


class GradNorm(Protocol):
    """The norm over one layout of segments, in two halves: ranks exchange what lies between them."""

    def squares(self, G: Tensor, blocks: Tensor) -> None:
        """Sums of squares of the blocks of G, which may be a part of the buffer, into as many of `blocks`."""
        ...

    def finish(self, blocks: Tensor, state: NormState) -> None:
        """Fills a NormState from the sums of squares of all blocks, float64."""
        ...


def block_squares(G: Tensor) -> Tensor:
    """Sum of squares of each block, float64."""
    roots: Tensor = torch.linalg.vector_norm(G.view(-1, BLOCK), dim=1)
    return roots.to(torch.float64).square_()


def norms(blocks: Tensor, segments: Segments) -> Tensor:
    """Global norm, then the norm of each label, from the sums of squares of the blocks."""
    squares = [blocks[first:end].sum() for first, end in segments.bounds]
    by_label: list[list[Tensor]] = [[] for _ in range(segments.num_labels)]
    for label, square in zip(segments.labels, squares, strict=True):
        by_label[label].append(square)
    sums = [reduce(torch.add, members) for members in (squares, *by_label)]
    return torch.stack(sums).sqrt()


def finish(norms: Tensor, state: NormState) -> None:
    """Stores the norms, judges the update and moves what counts the applied ones."""
    total = norms[0]
    ok = torch.isfinite(total)
    state.norms.copy_(norms)
    state.ok.copy_(ok)
    state.clip.copy_((state.max_norm / (total + CLIP_EPSILON)).clamp(max=1.0))
    state.products.copy_(torch.where(ok, state.products * state.betas, state.products))
    applied, skipped, run = state.counters.unbind()
    state.counters.copy_(torch.stack([applied + ok, skipped + ~ok, torch.where(ok, 0, run + 1)]))


class ReferenceGradNorm:
    """The specification as an object."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    def squares(self, G: Tensor, blocks: Tensor) -> None:
        """Each block by itself."""
        blocks.copy_(block_squares(G))

    def finish(self, blocks: Tensor, state: NormState) -> None:
        """Norms, then what follows from them."""
        finish(norms(blocks, self._segments), state)
