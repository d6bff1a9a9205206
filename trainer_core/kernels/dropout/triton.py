"""Dropout on a GPU: one launch that reads x and the counter and writes the result; no mask is stored."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer_core.kernels.compiler import FP_FUSION, kernel
from trainer_core.kernels.dropout.reference import FACTORS, KEY_STARTS, SHIFTS, threshold
from trainer_core.kernels.rounding import to_bfloat16

BLOCK = 4096
"""Elements of a program; the hashing of the counter is shared by all of them."""

DTYPES = (torch.float32, torch.bfloat16)
"""What the kernel reads and writes; it computes in float32."""

SHIFT0, SHIFT1, SHIFT2 = map(tl.constexpr, SHIFTS)
FACTOR0, FACTOR1 = map(tl.constexpr, FACTORS)
KEY0, KEY1 = map(tl.constexpr, KEY_STARTS)


@kernel()
def _mix(x: tl.tensor) -> tl.tensor:
    x = (x ^ (x >> SHIFT0)) * FACTOR0
    x = (x ^ (x >> SHIFT1)) * FACTOR1
    return x ^ (x >> SHIFT2)


@kernel()
def _key(start: tl.constexpr, counter: tl.tensor, site: tl.tensor) -> tl.tensor:
    key = tl.full((), start, tl.uint32)
    for i in tl.static_range(3):
        word = tl.load(counter + i)
        key = _mix(key ^ word.to(tl.uint32))
        key = _mix(key ^ (word >> 32).to(tl.uint32))
    return _mix(key ^ site.to(tl.uint32))


@kernel(any_value=("site", "least"))
def dropout_kernel(
    x: tl.tensor,
    out: tl.tensor,
    counter: tl.tensor,
    site: tl.tensor,
    least: tl.tensor,
    scale: tl.tensor,
    n: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = _mix(_mix(at.to(tl.uint32) ^ _key(KEY0, counter, site)) + _key(KEY1, counter, site))
    keep = (h ^ 0x80000000).to(tl.int32, bitcast=True) >= least
    value = tl.where(keep, tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) * scale, 0.0)
    if out.dtype.element_ty == tl.bfloat16:
        tl.store(out + at, to_bfloat16(value), mask=at < n)
    else:
        tl.store(out + at, value, mask=at < n)


def dropout_triton(x: Tensor, counter: Tensor, site: int, p: float, *, block: int = BLOCK) -> Tensor:
    """The specification in one launch, for contiguous x of one of DTYPES."""
    assert x.dtype in DTYPES and x.is_contiguous(), (x.dtype, x.stride())
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), block),)
    dropout_kernel[grid](
        x,
        out,
        counter,
        site,
        threshold(p),
        1 / (1 - p),
        x.numel(),
        BLOCK=block,
        num_warps=8,
        enable_fp_fusion=FP_FUSION,
    )
    return out
