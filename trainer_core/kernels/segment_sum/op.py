"""Sums of rows by index and weighted sums of rows of a table: operators with explicit backward passes.

Every sum has one order: that of the rows on a CPU, a tree over the sorted rows on a GPU; nothing is added
atomically. Sums are float32 at least and rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.target import launchable
from trainer_core.kernels.tensors import wide, wide_dtype
from trainer_core.kernels.wide_gradient import wide_gradient


def _nothing(*_: Any) -> None:
    return None


@operator("add_segments", fake=_nothing, mutates=("out",))
def add_segments(out: Tensor, rows: Tensor, index: Tensor) -> None:
    """Adds rows [n, d] into the rows of out [size, d] that index [n] names."""
    if launchable(out, rows):
        from trainer_core.kernels.segment_sum.triton import add_segments_triton

        add_segments_triton(out, rows, index, None)
    else:
        out.index_add_(0, index, rows.to(out.dtype))


@operator("add_weighted_segments", fake=_nothing, mutates=("out",))
def add_weighted_segments(out: Tensor, rows: Tensor, slots: Tensor, weights: Tensor) -> None:
    """Adds weights[i, j] rows[i] into out[slots[i, j]]: out [S, d], rows [n, d], slots and weights [n, k]."""
    if launchable(out, rows, weights):
        from trainer_core.kernels.segment_sum.triton import add_segments_triton

        add_segments_triton(out, rows, slots, weights)
        return
    # The positions in the order of their slots are bags of rows: a fast loop that never holds n k rows.
    ids, order = slots.flatten().to(torch.int32).sort(stable=True)
    starts = torch.searchsorted(ids, torch.arange(out.shape[0], dtype=torch.int32, device=out.device))
    sources = order.div(slots.shape[1], rounding_mode="floor")
    values = weights.flatten()[order].to(out.dtype)
    out += F.embedding_bag(sources, rows.to(out.dtype), starts, mode="sum", per_sample_weights=values)


def _fake_segment_sum(rows: Tensor, index: Tensor, size: int) -> Tensor:
    return rows.new_empty(size, rows.shape[1])


@operator("segment_sum", fake=_fake_segment_sum)
def _segment_sum(rows: Tensor, index: Tensor, size: int) -> Tensor:
    wide = rows.new_zeros(size, rows.shape[1], dtype=wide_dtype(rows))
    add_segments(wide, rows, index)
    return wide.to(rows.dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (index,) = ctx.saved_tensors
    return grad[index], None, None


differentiate("segment_sum", _backward, setup=_setup)


def segment_sum(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums [size, d] of rows [n, d] by index [n], int64 in [0, size); one that does not occur has zeros."""
    out: Tensor = _segment_sum(rows, index, size)
    return out


def _fake_weighted_rows(table: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    return table.new_empty(slots.shape[0], table.shape[1])


@operator("weighted_rows", fake=_fake_weighted_rows)
def _weighted_rows(table: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    if launchable(table, weights):
        from trainer_core.kernels.segment_sum.triton import weighted_rows_triton

        return weighted_rows_triton(table, slots, weights)
    values = wide(table)
    found = F.embedding_bag(slots, values, mode="sum", per_sample_weights=weights.to(values.dtype))
    return found.to(table.dtype)


def _fake_weights_gradient(grad: Tensor, table: Tensor, slots: Tensor) -> Tensor:
    return grad.new_empty(slots.shape, dtype=wide_dtype(grad))


@operator("weighted_rows_weights_gradient", fake=_fake_weights_gradient)
def _weights_gradient(grad: Tensor, table: Tensor, slots: Tensor) -> Tensor:
    """grad[i] . table[slots[i, j]] for each weight, [n, k]."""
    if launchable(grad, table):
        from trainer_core.kernels.segment_sum.triton import weights_gradient_triton

        return weights_gradient_triton(grad, table, slots)
    n, k = slots.shape
    widened = wide(grad)
    bags = torch.arange(n, device=slots.device).repeat_interleave(k, output_size=n * k)
    dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        widened, table.to(widened.dtype), slots.flatten(), bags.new_empty(0), bags, 0
    )
    return dots.view(n, k)


class _WeightedRows(torch.autograd.Function):
    """The gradient of a bfloat16 table with a buffer `wide` goes straight into it."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, slots: Tensor, weights: Tensor, wide: Tensor | None) -> Tensor:
        ctx.save_for_backward(table, slots, weights)
        ctx.wide = wide
        out: Tensor = _weighted_rows(table, slots, weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        table, slots, weights = ctx.saved_tensors
        grad = grad.contiguous()
        d_table = d_weights = None
        if ctx.wide is not None:
            add_weighted_segments(ctx.wide, grad, slots, weights)
        elif ctx.needs_input_grad[0]:
            sums = torch.zeros_like(table, dtype=wide_dtype(table))
            add_weighted_segments(sums, grad, slots, weights)
            d_table = sums.to(table.dtype)
        if ctx.needs_input_grad[2]:
            d_weights = _weights_gradient(grad, table, slots).to(weights.dtype)
        return d_table, None, d_weights, None


def weighted_rows(table: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    """sum_j weights[:, j] table[slots[:, j]] of table [S, dv], slots and weights [n, k]: [n, dv]."""
    wide = wide_gradient(table) if torch.is_grad_enabled() else None
    out: Tensor = _WeightedRows.apply(table, slots.contiguous(), weights.contiguous(), wide)  # type: ignore[no-untyped-call]
    return out
