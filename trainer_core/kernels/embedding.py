"""Rows of a table by id; a bfloat16 table has its gradient summed in float32, however often an id occurs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trainer_core.kernels.segment_sum import segment_sum
from trainer_core.kernels.segment_sum.op import add_segments
from trainer_core.kernels.target import target
from trainer_core.kernels.wide_gradient import wide_gradient


class _Embedding(torch.autograd.Function):
    """The gradient of the table is a sum in a fixed order; it goes straight into `wide` if there is one."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor, wide: Tensor | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.wide, ctx.size = wide, table.shape[0]
        return F.embedding(ids, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, None]:
        (ids,) = ctx.saved_tensors
        index, rows = ids.flatten(), grad.flatten(0, -2)
        if ctx.wide is None:
            return None, segment_sum(rows, index, ctx.size), None
        add_segments(ctx.wide, rows, index)
        return None, None, None


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Rows [..., d] of table [V, d] by ids [...]."""
    wide = wide_gradient(table)
    if not torch.is_grad_enabled() or (wide is None and target(table) == "cpu"):
        return F.embedding(ids, table)  # whose backward pass on a CPU adds in the order of the rows, too
    out: Tensor = _Embedding.apply(ids, table, wide)  # type: ignore[no-untyped-call]
    return out
