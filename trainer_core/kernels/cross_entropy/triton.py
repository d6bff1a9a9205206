"""Loss and gradient of logits on a GPU: one pass over a row for its loss, one in place for its gradient.

A program walks a row with a running maximum and the sum of exponentials below it, and keeps both numbers; the
second kernel turns the logits into softmax minus one-hot where they lie. float32 inside, nothing is scattered
or added atomically. A NaN among the logits, or a target outside the vocabulary, makes the row's loss NaN; a
row whose target is -100 has loss and gradient zero whatever its logits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer_core.kernels.compiler import FP_FUSION, kernel
from trainer_core.kernels.cross_entropy.reference import IGNORE_INDEX
from trainer_core.kernels.rounding import as_stored

BLOCK, WARPS = 8192, 16
"""Logits that a program of the first kernel reads at a time; its warps."""

GRADIENT_BLOCK, GRADIENT_WARPS = 4096, 8
"""Logits of a program of the second kernel; its warps."""

IGNORED = tl.constexpr(IGNORE_INDEX)


@kernel()
def losses_kernel(
    logits: tl.tensor,
    targets: tl.tensor,
    losses: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    V: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Of each row of logits [n, V]: its loss, its largest logit, the sum of exponentials relative to that."""
    row = tl.program_id(0).to(tl.int64)
    start_of_row = logits + row * V
    lane = tl.arange(0, BLOCK)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        column = start + lane
        x = tl.load(start_of_row + column, mask=column < V, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, 0))
        # So far only -inf, or NaN that the maximum passes over: no difference of infinities is taken.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.exp(x - base)
        top = higher
    summed = tl.sum(total, 0)
    target = tl.load(targets + row)
    inside = (target >= 0) & (target < V)
    hit = tl.load(start_of_row + target, mask=inside, other=float("nan")).to(tl.float32)
    loss = (top - hit) + tl.log(summed)
    tl.store(losses + row, tl.where(target == IGNORED, 0.0, loss))
    tl.store(tops + row, top)
    tl.store(sums + row, summed)


@kernel()
def gradient_kernel(
    logits: tl.tensor,
    targets: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    V: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Logits [n, V] become the gradient of the sum of their losses."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + row * V + column
    target = tl.load(targets + row)
    x = tl.load(at, mask=column < V, other=float("-inf")).to(tl.float32)
    probability = tl.exp(x - tl.load(tops + row)) * (1.0 / tl.load(sums + row))
    pull = probability - tl.where(column == target, 1.0, 0.0)
    pull = tl.where(target == IGNORED, 0.0, pull)
    tl.store(at, as_stored(pull, logits), mask=column < V)


def losses_triton(logits: Tensor, targets: Tensor, *, block: int = BLOCK) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [n], largest logits [n] and sums of exponentials [n] of contiguous logits [n, V]."""
    n, V = logits.shape
    assert logits.is_contiguous() and targets.is_contiguous(), (logits.stride(), targets.stride())
    losses, tops, sums = torch.empty(3, n, dtype=torch.float32, device=logits.device)
    losses_kernel[(n,)](
        *(logits, targets, losses, tops, sums, V),
        BLOCK=block,
        num_warps=WARPS,
        enable_fp_fusion=FP_FUSION,
    )
    return losses, tops, sums


def gradient_triton(
    logits: Tensor, targets: Tensor, tops: Tensor, sums: Tensor, *, block: int = GRADIENT_BLOCK
) -> None:
    """Puts softmax - onehot in the place of contiguous logits [n, V]; zeros where the target is -100."""
    n, V = logits.shape
    assert logits.is_contiguous() and targets.is_contiguous(), (logits.stride(), targets.stride())
    gradient_kernel[(n, triton.cdiv(V, block))](
        *(logits, targets, tops, sums, V),
        BLOCK=block,
        num_warps=GRADIENT_WARPS,
        enable_fp_fusion=FP_FUSION,
    )
