"""The causal convolution of width 4 on a GPU: one pass forward, one pass backward that convolves again.

Forward, a tile of tokens reads its inputs four times, three of them from the cache. Backward, a program walks
along a strip of tokens and holds the last three inputs and gradients in registers, so that it reads each
token once; it sums the gradients of its taps there and writes them once, and the sum over strips follows:
every order is fixed. float32 inside.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer_core.kernels.compiler import FP_FUSION, kernel
from trainer_core.kernels.rounding import as_stored

WIDTH = 4
"""Taps, the only number that these kernels are written for."""

ROWS, BLOCK = 4, 1024
"""Tokens and channels of a tile."""

STRIP = 64
"""Tokens of a strip; the backward pass computes three more of each again."""

WARPS = 8
"""Warps of a program of the forward pass, twice those of the backward pass."""


@kernel()
def _token(
    x: tl.tensor,
    state: tl.tensor,
    t: tl.tensor,
    T: tl.tensor,
    C: tl.tensor,
    stride: tl.tensor,
    column: tl.tensor,
    mask: tl.tensor,
) -> tl.tensor:
    """Input at token t of a row, where there is none before it its state, elsewhere 0."""
    value = tl.load(x + t * stride + column, mask=mask & (t >= 0) & (t < T), other=0.0).to(tl.float32)
    if state is not None:
        value += tl.load(state + (t + 3) * C + column, mask=mask & (t < 0), other=0.0).to(tl.float32)
    return value


@kernel(any_value=("T", "tiles"))
def conv_kernel(
    x: tl.tensor,
    taps: tl.tensor,
    state: tl.tensor,
    out: tl.tensor,
    T: tl.tensor,
    C: tl.tensor,
    row_stride: tl.tensor,
    stride: tl.tensor,
    tiles: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`taps` [4, C]; `tiles` of ROWS tokens in each row."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    t = ((tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (t < T) & (column < C)
    x += row * row_stride
    if state is not None:
        state += row * 3 * C
    y = tl.zeros([ROWS, BLOCK], tl.float32)
    for j in tl.static_range(4):
        tap = tl.load(taps + j * C + column, mask=column < C, other=0.0).to(tl.float32)
        y += tap * _token(x, state, t - 3 + j, T, C, stride, column, mask)
    tl.store(out + (row * T + t) * C + column, as_stored(y * tl.sigmoid(y), out), mask=mask)


@kernel(any_value=("T", "strips"))
def conv_backward_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    taps: tl.tensor,
    state: tl.tensor,
    d_x: tl.tensor,
    d_state: tl.tensor,
    sums: tl.tensor,
    T: tl.tensor,
    C: tl.tensor,
    row_stride: tl.tensor,
    stride: tl.tensor,
    strips: tl.tensor,
    STRIP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`strips` of STRIP tokens in each row; `sums` [rows x strips, 4, C] get the gradients of the taps."""
    row = (tl.program_id(0) // strips).to(tl.int64)
    first = ((tl.program_id(0) % strips) * STRIP).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < C
    x += row * row_stride
    grad += row * T * C
    d_x += row * T * C
    if state is not None:
        state += row * 3 * C
        d_state += row * 3 * C
    tap0 = tl.load(taps + column, mask=mask, other=0.0).to(tl.float32)
    tap1 = tl.load(taps + C + column, mask=mask, other=0.0).to(tl.float32)
    tap2 = tl.load(taps + 2 * C + column, mask=mask, other=0.0).to(tl.float32)
    tap3 = tl.load(taps + 3 * C + column, mask=mask, other=0.0).to(tl.float32)
    x3 = _token(x, state, first - 3, T, C, stride, column, mask)
    x2 = _token(x, state, first - 2, T, C, stride, column, mask)
    x1 = _token(x, state, first - 1, T, C, stride, column, mask)
    nothing = tl.zeros([BLOCK], tl.float32)
    d1, d2, d3 = nothing, nothing, nothing
    sum0, sum1, sum2, sum3 = nothing, nothing, nothing, nothing
    for step in range(STRIP + 3):
        t = first + step
        x0 = _token(x, state, t, T, C, stride, column, mask)
        y = tap0 * x3 + tap1 * x2 + tap2 * x1 + tap3 * x0
        sigmoid = tl.sigmoid(y)
        pull = tl.load(grad + t * C + column, mask=mask & (t < T), other=0.0).to(tl.float32)
        d0 = tl.where(t < T, pull * (sigmoid + y * sigmoid * (1.0 - sigmoid)), 0.0)
        own = tl.where(step < STRIP, d0, 0.0)
        sum0 += own * x3
        sum1 += own * x2
        sum2 += own * x1
        sum3 += own * x0
        spread = tap0 * d0 + tap1 * d1 + tap2 * d2 + tap3 * d3
        at = t - 3
        tl.store(d_x + at * C + column, as_stored(spread, d_x), mask=mask & (step >= 3) & (at < T))
        if state is not None:
            tl.store(d_state + t * C + column, as_stored(spread, d_state), mask=mask & (t < 3))
        x3, x2, x1 = x2, x1, x0
        d3, d2, d1 = d2, d1, d0
    sums += tl.program_id(0).to(tl.int64) * 4 * C
    tl.store(sums + column, sum0, mask=mask)
    tl.store(sums + C + column, sum1, mask=mask)
    tl.store(sums + 2 * C + column, sum2, mask=mask)
    tl.store(sums + 3 * C + column, sum3, mask=mask)


def _neighbours(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def conv_triton(x: Tensor, taps: Tensor, state: Tensor | None, *, rows: int = ROWS) -> Tensor:
    """silu of the convolution of x [B, T, C] with taps [C, 4], after state [B, 3, C]."""
    B, T, C = x.shape
    x, out = _neighbours(x), torch.empty(B, T, C, dtype=x.dtype, device=x.device)
    block, tiles = min(BLOCK, triton.next_power_of_2(C)), triton.cdiv(T, rows)
    conv_kernel[(B * tiles, triton.cdiv(C, block))](
        *(x, taps.t().contiguous(), None if state is None else state.contiguous(), out),
        *(T, C, x.stride(0), x.stride(1), tiles),
        ROWS=rows,
        BLOCK=block,
        num_warps=WARPS,
        enable_fp_fusion=FP_FUSION,
    )
    return out


def conv_backward_triton(
    grad: Tensor, x: Tensor, taps: Tensor, state: Tensor | None, *, strip: int = STRIP
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, taps (in float32) and state (of no tokens without one)."""
    B, T, C = x.shape
    x, d_x = _neighbours(x), torch.empty(B, T, C, dtype=x.dtype, device=x.device)
    d_state = torch.zeros(B, 0 if state is None else WIDTH - 1, C, dtype=x.dtype, device=x.device)
    block, strips = min(BLOCK, triton.next_power_of_2(C)), triton.cdiv(T, strip)
    sums = torch.empty(B * strips, WIDTH, C, dtype=torch.float32, device=x.device)
    conv_backward_kernel[(B * strips, triton.cdiv(C, block))](
        *(grad.contiguous(), x, taps.t().contiguous(), None if state is None else state.contiguous()),
        *(d_x, d_state, sums, T, C, x.stride(0), x.stride(1), strips),
        STRIP=strip,
        BLOCK=block,
        num_warps=WARPS // 2,
        enable_fp_fusion=FP_FUSION,
    )
    return d_x, sums.sum(0).t().contiguous(), d_state
