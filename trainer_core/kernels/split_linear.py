"""A linear map whose result is wanted in parts: a product for each part, not slices of one product.

Autograd copies the gradients of slices into one tensor before it can go on, and kernels that want neighbours
in memory copy the slices themselves. Here each part is a tensor of its own, and its product with the input is
written straight into the rows of the weight's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class _SplitLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *sizes: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        return tuple(F.linear(x, rows) for rows in torch.split(weight, list(sizes)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows, d_weight = x.flatten(0, -2), torch.empty_like(weight)
        pulls = [grad.flatten(0, -2) for grad in grads]
        for pull, d_part in zip(pulls, torch.split(d_weight, ctx.sizes), strict=True):
            torch.mm(pull.t(), rows, out=d_part)
        first, *others = torch.split(weight, ctx.sizes)
        d_rows = torch.mm(pulls[0], first)
        for pull, part in zip(pulls[1:], others, strict=True):
            d_rows.addmm_(pull, part)
        return d_rows.view(x.shape), d_weight, *(None for _ in ctx.sizes)


def split_linear(x: Tensor, weight: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """x weight^T cut along its last dimension: x [..., D], weight [C, D], sizes that add up to C.

    The gradient of a bfloat16 x is rounded after each part.
    """
    parts: tuple[Tensor, ...] = _SplitLinear.apply(x, weight, *sizes)  # type: ignore[no-untyped-call]
    return parts
