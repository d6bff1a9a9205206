"""Launches of the kernels in `triton`: shapes of tiles and strips, and the sums over strips.

They take rows [n, C] that `as_rows` made: neighbours in memory along C, any distance between rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from trainer_core.kernels.compiler import FP_FUSION
from trainer_core.kernels.release.triton import (
    COLUMNS,
    ELEMENTS,
    STRIPS,
    WARPS,
    gate_backward_kernel,
    gate_kernel,
    release_backward_kernel,
    release_kernel,
)

OPTIONS = {"num_warps": WARPS, "enable_fp_fusion": FP_FUSION}


def tile(n: int, C: int, columns: int | None) -> tuple[int, int]:
    """Rows and columns of a tile over [n, C]; whole rows without a bound on the columns."""
    block = triton.next_power_of_2(C)
    block = block if columns is None else min(block, columns)
    return min(max(ELEMENTS // block, 1), triton.next_power_of_2(max(n, 1))), block


def strips(n: int, rows: int, most: int) -> tuple[int, int]:
    """Number of strips and rows of each, a multiple of `rows`."""
    per_strip = max(triton.cdiv(triton.cdiv(n, most), rows), 1) * rows
    return triton.cdiv(n, per_strip), per_strip


def _empty(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def release_triton(
    x: Tensor, theta: Tensor, u: Tensor | None, theta_u: Tensor | None, *, two_sided: bool, binary: bool
) -> Tensor:
    """Release of x [n, C], times that of u where there is one."""
    n, C = x.shape
    out = _empty(x)
    rows, block = tile(n, C, COLUMNS)
    release_kernel[(triton.cdiv(n, rows), triton.cdiv(C, block))](
        *(x, theta, u, theta_u, out, n, C, x.stride(0), 0 if u is None else u.stride(0)),
        TWO_SIDED=two_sided,
        BINARY=binary,
        ROWS=rows,
        BLOCK=block,
        **OPTIONS,
    )
    return out


def release_backward_triton(
    grad: Tensor,
    x: Tensor,
    theta: Tensor,
    u: Tensor | None,
    theta_u: Tensor | None,
    *,
    two_sided: bool,
    binary: bool,
    most: int = STRIPS,
) -> list[Tensor]:
    """Gradients of x and |theta|, then of u and |theta_u| where there is one; grad is contiguous."""
    n, C = x.shape
    rows, block = tile(n, C, COLUMNS)
    number, per_strip = strips(n, rows, most)
    pairs: list[tuple[Tensor | None, Tensor | None]] = [
        (None, None)
        if of is None
        else (_empty(of), torch.empty(number, C, dtype=torch.float32, device=x.device))
        for of in (x, u)
    ]
    (d_x, sums), (d_u, sums_u) = pairs
    release_backward_kernel[(number, triton.cdiv(C, block))](
        *(grad, x, theta, u, theta_u, d_x, d_u, sums, sums_u),
        *(n, C, x.stride(0), 0 if u is None else u.stride(0), per_strip),
        TWO_SIDED=two_sided,
        BINARY=binary,
        ROWS=rows,
        BLOCK=block,
        **OPTIONS,
    )
    return [t for d, s in pairs if d is not None and s is not None for t in (d, s.sum(0))]


def gate_triton(
    s: Tensor, gain: Tensor, theta: Tensor, z: Tensor, eps: float, *, binary: bool
) -> tuple[Tensor, Tensor]:
    """The result [n, C] and the norm's scale [n, 1]."""
    n, C = s.shape
    out, scale = _empty(z), torch.empty(n, 1, dtype=torch.float32, device=s.device)
    rows, block = tile(n, C, None)
    gate_kernel[(triton.cdiv(n, rows),)](
        *(s, gain, theta, z, out, scale, n, C, s.stride(0), z.stride(0), eps),
        BINARY=binary,
        ROWS=rows,
        BLOCK=block,
        **OPTIONS,
    )
    return out, scale


def gate_backward_triton(
    grad: Tensor,
    s: Tensor,
    gain: Tensor,
    theta: Tensor,
    z: Tensor,
    scale: Tensor,
    *,
    binary: bool,
    most: int = STRIPS,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of s, gain, |theta| and z; grad is contiguous."""
    n, C = s.shape
    rows, block = tile(n, C, None)
    number, per_strip = strips(n, rows, most)
    d_s, d_z = _empty(s), _empty(z)
    sums: list[Any] = [torch.empty(number, C, dtype=torch.float32, device=s.device) for _ in range(2)]
    gate_backward_kernel[(number,)](
        *(grad, s, gain, theta, z, scale, d_s, d_z, *sums),
        *(n, C, s.stride(0), z.stride(0), per_strip),
        BINARY=binary,
        ROWS=rows,
        BLOCK=block,
        **OPTIONS,
    )
    return d_s, sums[0].sum(0), sums[1].sum(0), d_z
