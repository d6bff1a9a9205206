"""RMSNorm on a GPU: one pass each way over whole rows, float32 inside.

Rows lie in strips, one strip a program of the backward pass: it keeps the sums over its rows that make the
gradient of the weight in registers and writes them once; the sum over strips follows, so every order is
fixed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer_core.kernels.compiler import FP_FUSION, kernel
from trainer_core.kernels.rounding import as_stored

STRIPS = 512
"""Strips of rows at most: few enough that their sums are small beside the rows."""

ELEMENTS = 4096
"""Elements of a tile, rows times columns, both powers of two; more where a row is longer."""


@kernel()
def _read(pointer: tl.tensor, at: tl.tensor, mask: tl.tensor) -> tl.tensor:
    return tl.load(pointer + at, mask=mask, other=0.0).to(tl.float32)


@kernel(any_value=("n", "eps"))
def norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    n: tl.tensor,
    C: tl.tensor,
    x_stride: tl.tensor,
    eps: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`out` [n, C] and what each row was multiplied with, `scales` [n]."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row, column = rows[:, None], tl.arange(0, BLOCK)[None, :]
    mask = (row < n) & (column < C)
    value = _read(x, row * x_stride + column, mask)
    scale = tl.rsqrt(tl.sum(value * value, 1) / C + eps)
    tl.store(scales + rows, scale, mask=rows < n)
    normed = value * scale[:, None] * _read(weight, column, column < C)
    tl.store(out + row * C + column, as_stored(normed, out), mask=mask)


@kernel(any_value=("n", "per_strip"))
def norm_backward_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    d_x: tl.tensor,
    sums: tl.tensor,
    n: tl.tensor,
    C: tl.tensor,
    grad_stride: tl.tensor,
    x_stride: tl.tensor,
    per_strip: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`d_x` [n, C]; `sums` [strips, C] get what each strip adds to the gradient of the weight."""
    strip = tl.program_id(0)
    column = tl.arange(0, BLOCK)[None, :]
    gain = _read(weight, column, column < C)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(strip * per_strip, (strip + 1) * per_strip, ROWS):
        rows = (start + tl.arange(0, ROWS)).to(tl.int64)
        row = rows[:, None]
        mask = (row < n) & (column < C)
        pull = _read(grad, row * grad_stride + column, mask)
        scale = tl.load(scales + rows, mask=rows < n, other=0.0)[:, None]
        normed = _read(x, row * x_stride + column, mask) * scale
        total += pull * normed
        pull *= gain
        along = tl.sum(pull * normed, 1)[:, None] / C
        tl.store(d_x + row * C + column, as_stored((pull - normed * along) * scale, d_x), mask=mask)
    ends = strip.to(tl.int64) * C + tl.arange(0, BLOCK)
    tl.store(sums + ends, tl.sum(total, 0), mask=tl.arange(0, BLOCK) < C)


def tile(n: int, C: int) -> tuple[int, int, int]:
    """Rows and columns of a tile over [n, C], and the warps for it."""
    block = triton.next_power_of_2(C)
    rows = min(max(ELEMENTS // block, 1), triton.next_power_of_2(n))
    return rows, block, 16 if block > ELEMENTS else 8


def strips(n: int, rows: int, most: int) -> tuple[int, int]:
    """Number of strips and rows of each, a multiple of `rows`."""
    per_strip = triton.cdiv(triton.cdiv(n, most), rows) * rows
    return triton.cdiv(n, per_strip), per_strip


def norm_triton(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The result [n, C], contiguous, and the scales [n, 1] of rows x [n, C] of unit stride."""
    n, C = x.shape
    out = torch.empty(n, C, dtype=x.dtype, device=x.device)
    scales = torch.empty(n, 1, dtype=torch.float32, device=x.device)
    rows, block, warps = tile(n, C)
    norm_kernel[(triton.cdiv(n, rows),)](
        *(x, weight, out, scales, n, C, x.stride(0), eps),
        ROWS=rows,
        BLOCK=block,
        num_warps=warps,
        enable_fp_fusion=FP_FUSION,
    )
    return out, scales


def norm_backward_triton(
    grad: Tensor, x: Tensor, weight: Tensor, scales: Tensor, *, most: int = STRIPS
) -> tuple[Tensor, Tensor]:
    """Gradients of x, contiguous, and of the weight, in float32; grad and x [n, C] of unit stride."""
    n, C = x.shape
    rows, block, warps = tile(n, C)
    number, per_strip = strips(n, rows, most)
    d_x = torch.empty(n, C, dtype=x.dtype, device=x.device)
    sums = torch.empty(number, C, dtype=torch.float32, device=x.device)
    norm_backward_kernel[(number,)](
        *(grad, x, weight, scales, d_x, sums, n, C, grad.stride(0), x.stride(0), per_strip),
        ROWS=rows,
        BLOCK=block,
        num_warps=warps,
        enable_fp_fusion=FP_FUSION,
    )
    return d_x, sums.sum(0)
