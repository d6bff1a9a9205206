"""Rows of a table by id; a bfloat16 table has its gradient summed in float32, however often an id occurs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trainer_core.kernels.wide_gradient import wide_gradient


class _IntoWide(torch.autograd.Function):
    """The gradient of the table goes straight into its float32 buffer."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor, wide: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.wide = wide
        return F.embedding(ids, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        wide, wide_grad = ctx.wide, grad.to(ctx.wide.dtype)
        if wide.device.type == "cpu":
            wide.index_add_(0, ids.flatten(), wide_grad.flatten(0, -2))
        else:  # index_add_ would use atomics there, which add in no fixed order
            wide += torch.ops.aten.embedding_dense_backward(wide_grad, ids, wide.shape[0], -1, False)
        return None, None, None


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Rows [..., d] of table [V, d] by ids [...]."""
    wide = wide_gradient(table)
    if wide is None or not torch.is_grad_enabled():
        return F.embedding(ids, table)
    out: Tensor = _IntoWide.apply(ids, table, wide)  # type: ignore[no-untyped-call]
    return out
