"""How our Triton kernels are made and compiled; the only file that decorates one.

Fusing a product with a sum rounds once instead of twice, and compilers differ in where they do it: it is off
in every compile and launch, so that a kernel rounds where its twin does and an upgrade changes no bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton

FP_FUSION = False
"""Option `enable_fp_fusion` of every launch."""


def kernel(*, any_value: Sequence[str] = (), any_alignment: Sequence[str] = ()) -> Callable[[Any], Any]:
    """Decorates a kernel; no variant is compiled for values or alignments of the arguments that are named."""

    def decorate(function: Any) -> Any:
        return triton.jit(
            function,
            do_not_specialize=list(any_value),
            do_not_specialize_on_alignment=list(any_alignment),
        )

    return decorate
