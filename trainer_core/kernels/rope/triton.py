"""The rotation on a GPU: one pass that reads a vector once and writes it once, float32 inside.

Input and result may lie in memory in any order of their axes, each in its own: heads are rotated where a
projection leaves them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from trainer_core.kernels.compiler import FP_FUSION, kernel
from trainer_core.kernels.rounding import as_stored

ELEMENTS, WARPS = 2048, 4
"""Pairs of a program, vectors times pairs of a vector; its warps."""


@kernel(any_value=("n", "T", "H"))
def rotate_kernel(
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    T: tl.tensor,
    H: tl.tensor,
    x_row: tl.tensor,
    x_head: tl.tensor,
    x_token: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    out_token: tl.tensor,
    SIGN: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`n` vectors of 2 HALF elements; strides in elements; SIGN -1 turns back."""
    vector = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    head = (vector % H).to(tl.int64)
    token = (vector // H % T).to(tl.int64)
    row = (vector // H // T).to(tl.int64)
    pair = tl.arange(0, BLOCK)[None, :]
    mask = (vector < n) & (pair < HALF)
    at = row * x_row + head * x_head + token * x_token + pair
    first = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + at + HALF, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(cos + token * HALF + pair, mask=mask, other=0.0).to(tl.float32)
    s = SIGN * tl.load(sin + token * HALF + pair, mask=mask, other=0.0).to(tl.float32)
    to = row * out_row + head * out_head + token * out_token + pair
    tl.store(out + to, as_stored(first * c - second * s, out), mask=mask)
    tl.store(out + to + HALF, as_stored(second * c + first * s, out), mask=mask)


def rotate_triton(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, sign: int) -> None:
    """Rotates x [B, H, T, d] of neighbours along d into `out` by contiguous tables [T, d/2]."""
    B, H, T, d = x.shape
    assert x.stride(-1) == out.stride(-1) == 1 and cos.is_contiguous() and sin.is_contiguous()
    block = triton.next_power_of_2(d // 2)
    rows = max(ELEMENTS // block, 1)
    n = B * H * T
    assert n < 1 << 31, "vectors are counted in 31 bits"
    rotate_kernel[(triton.cdiv(n, rows),)](
        *(x, cos, sin, out, n, T, H, *x.stride()[:-1], *out.stride()[:-1]),
        SIGN=sign,
        HALF=d // 2,
        ROWS=rows,
        BLOCK=block,
        num_warps=WARPS,
        enable_fp_fusion=FP_FUSION,
    )
