"""Device functions of our Triton kernels that round, alike on every device and when interpreted."""

from __future__ import annotations

import triton.language as tl

from trainer_core.kernels.compiler import kernel


@kernel()
def to_bfloat16(x: tl.tensor) -> tl.tensor:
    """float32 to bfloat16, to nearest even on the bits: a cast truncates when interpreted; NaN stays one."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x == x, rounded, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@kernel()
def as_stored(value: tl.tensor, pointer: tl.tensor) -> tl.tensor:
    """A float32 value in the type, float32 or bfloat16, that the pointer points to."""
    if pointer.dtype.element_ty == tl.bfloat16:
        return to_bfloat16(value)
    else:
        return value
