"""Where the gradients of bfloat16 parameters are summed: float32 buffers that autograd does not know.

Autograd wants the gradient of a parameter in the parameter's dtype, and a sum over micro-batches in bfloat16
would lose what is small. So each gradient that autograd makes is added to the buffer and dropped; a kernel
that has a gradient in float32 may add it there itself and give autograd none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainer_core.kernels.target import target

_NAME = "_wide_gradient"


def sum_gradients(param: nn.Parameter, wide: Tensor) -> Any:
    """From here on the gradients of `param` end up in `wide`, of its shape; the handle that ends it."""

    def add(param: Tensor) -> None:
        if param.grad is not None:  # autograd calls also where a kernel gave it none
            # A GPU widens on its way; a CPU makes a copy, which a trace of memory does not see unless we do.
            wide.add_(param.grad if target(wide) == "cuda" else param.grad.to(wide.dtype))
            param.grad = None

    setattr(param, _NAME, wide)
    return param.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]


def wide_gradient(param: Tensor) -> Tensor | None:
    """The float32 buffer that the gradient of a parameter is summed in, where a kernel may add to it itself.

    A compiled graph may not: it hands its gradients to autograd. One that is frozen has none.
    """
    if torch.compiler.is_compiling() or not param.requires_grad:
        return None
    wide: Tensor | None = getattr(param, _NAME, None)
    return wide
