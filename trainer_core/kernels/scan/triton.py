"""The scan on a GPU: the launches of both passes, on contiguous tensors, with nothing read on the host.

Saved between the passes are the inputs and the potentials around chunks; decays and products are made again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer_core.kernels.compiler import FP_FUSION
from trainer_core.kernels.scan.layout import Gradients, Inputs, Shape
from trainer_core.kernels.scan.triton_scan import (
    chunk_scan_backward_kernel,
    chunk_scan_groups_kernel,
    chunk_scan_kernel,
)
from trainer_core.kernels.scan.triton_state import (
    chunk_cumsum_kernel,
    chunk_state_kernel,
    state_pass_backward_kernel,
    state_pass_kernel,
)

PASS_BLOCK, CUMSUM_HEADS = 1024, 16
"""Potentials of a program of the pass over chunks; heads of a program that sums exponents."""

ROWS = 64
"""Tokens of a program that adds heads."""

WARPS = 8
"""Of the programs that hold a chunk."""


def tiles(s: Shape, dtype: torch.dtype, narrow: Any) -> dict[str, Any]:
    """The constants that every kernel over tiles gets; `narrow` is what operands of bfloat16 products are."""
    return {
        "H": s.H,
        "P": s.P,
        "G": s.G,
        "N": s.N,
        "Q": s.Q,
        "BLOCK_N": max(16, triton.next_power_of_2(s.N)),
        "BLOCK_P": max(16, triton.next_power_of_2(s.P)),
        "DT": narrow if dtype == torch.bfloat16 else tl.float32,
        "PRECISION": "tf32x3",
    }


def _exponents(s: Shape, dt: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    cum = dt.new_empty(s.B, s.H, s.chunks * s.Q)
    steps = torch.empty_like(cum)
    heads = min(CUMSUM_HEADS, triton.next_power_of_2(s.H))
    grid = (s.chunks, triton.cdiv(s.H, heads), s.B)
    chunk_cumsum_kernel[grid](
        dt, A, cum, steps, s.T, s.chunks, H=s.H, Q=s.Q, HEADS=heads, enable_fp_fusion=FP_FUSION
    )
    return cum, steps


def _pass_grid(s: Shape, block: int) -> tuple[int, int]:
    return triton.cdiv(s.N * s.P, block), s.B * s.H


def forward_triton(
    s: Shape, x: Inputs, state: Tensor | None, *, narrow: Any = tl.bfloat16, block: int = PASS_BLOCK
) -> tuple[Tensor, Tensor, Tensor]:
    """What `chunked.forward` returns; the potentials stand as [chunks + 1, B, H, N, P]."""
    u, dt, A, b, r, skip = x
    cum, steps = _exponents(s, dt, A)
    V = dt.new_empty(s.chunks + 1, s.B, s.H, s.N, s.P)
    if state is None:
        V[0].zero_()
    else:
        V[0].copy_(state.transpose(-1, -2))
    grid, constants = (s.chunks, s.H, s.B), tiles(s, u.dtype, narrow)
    options = {"num_warps": WARPS, "enable_fp_fusion": FP_FUSION}
    numbers = (s.T, s.chunks, s.B)
    chunk_state_kernel[grid](b, u, cum, steps, V[1:], *numbers, **constants, AFTER=True, **options)
    state_pass_kernel[_pass_grid(s, block)](
        V, cum, s.chunks, s.B * s.H, SIZE=s.N * s.P, Q=s.Q, BLOCK=block, enable_fp_fusion=FP_FUSION
    )
    y = torch.empty_like(u)
    chunk_scan_kernel[grid](u, b, r, cum, steps, V, y, *numbers, **constants, **options)
    if skip is not None:
        y = y + skip[:, None].to(u.dtype) * u
    return y, V[-1].transpose(-1, -2).contiguous(), V.view(-1)


def backward_triton(
    s: Shape,
    g: Tensor,
    g_last: Tensor | None,
    x: Inputs,
    V_all: Tensor,
    *,
    narrow: Any = tl.bfloat16,
    block: int = PASS_BLOCK,
) -> Gradients:
    """What `chunked.backward` returns, for the potentials of `forward_triton`."""
    u, dt, A, b, r, skip = x
    cum, steps = _exponents(s, dt, A)
    V = V_all.view(s.chunks + 1, s.B, s.H, s.N, s.P)
    d_V = torch.empty_like(V)
    if g_last is None:
        d_V[-1].zero_()
    else:
        d_V[-1].copy_(g_last.transpose(-1, -2))
    grid, constants = (s.chunks, s.H, s.B), tiles(s, u.dtype, narrow)
    options = {"num_warps": WARPS, "enable_fp_fusion": FP_FUSION}
    numbers = (s.T, s.chunks, s.B)
    chunk_state_kernel[grid](r, g, cum, steps, d_V, *numbers, **constants, AFTER=False, **options)
    pass_grid = _pass_grid(s, block)
    kept = cum.new_empty(pass_grid[0], s.B, s.H, s.chunks)
    state_pass_backward_kernel[pass_grid](
        d_V, V, cum, kept, s.chunks, s.B * s.H, SIZE=s.N * s.P, Q=s.Q, BLOCK=block, enable_fp_fusion=FP_FUSION
    )
    kept = kept.sum(0)
    d_u, d_steps, d_A = torch.empty_like(u), torch.empty_like(cum), torch.empty_like(kept)
    results = (d_u, d_steps, d_A)
    chunk_scan_backward_kernel[grid](
        g, u, b, r, A, cum, steps, V, d_V[1:], kept, *results, *numbers, **constants, **options
    )
    d_b = _by_group(s, (u, g, r, cum, steps, d_V[1:]), constants, reads=False).to(b.dtype)
    d_r = _by_group(s, (g, u, b, cum, steps, V), constants, reads=True).to(r.dtype)
    d_dt = d_steps[..., : s.T].transpose(1, 2).contiguous()
    d_skip = torch.zeros_like(A)
    if skip is not None:
        d_skip = (g.to(A.dtype) * u).sum((0, 1, 3))
        d_u = d_u + skip[:, None].to(u.dtype) * g
    return d_u, d_dt, d_A.sum((0, 2)), d_b, d_r, d_skip, d_V[0].transpose(-1, -2).contiguous()


def _by_group(s: Shape, tensors: tuple[Tensor, ...], constants: dict[str, Any], *, reads: bool) -> Tensor:
    """The gradient of r or b [B, T, G, N]: parts of a group's heads, then their sum."""
    rows, heads = min(ROWS, s.Q), s.heads_together
    parts = tensors[3].new_empty(s.G, s.parts, s.B, s.T, s.N)
    grid = (s.chunks * (s.Q // rows), s.H // heads, s.B)
    chunk_scan_groups_kernel[grid](
        *tensors,
        parts,
        s.T,
        s.chunks,
        s.B,
        **constants,
        ROWS=rows,
        HEADS=heads,
        READS=reads,
        num_warps=WARPS,
        enable_fp_fusion=FP_FUSION,
    )
    return parts.sum(1).permute(1, 2, 0, 3).contiguous()
