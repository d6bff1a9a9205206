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


class _Sum:
    """The hook that adds a gradient to a buffer; who has it, has the buffer."""

    def __init__(self, wide: Tensor) -> None:
        self.wide = wide

    def __call__(self, param: Tensor) -> None:
        if param.grad is not None:  # autograd calls also where a kernel gave it none
            # A GPU widens on its way; a CPU makes a copy, which a trace of memory does not see unless we do.
            on_gpu = target(self.wide) == "cuda"
            self.wide.add_(param.grad if on_gpu else param.grad.to(self.wide.dtype))
            param.grad = None


def sum_gradients(param: nn.Parameter, wide: Tensor) -> Any:
    """From here on the gradients of `param` end up in `wide`, of its shape; the handle that ends it.

    A copy of the parameter has gradients of its own.
    """
    return param.register_post_accumulate_grad_hook(_Sum(wide))  # type: ignore[no-untyped-call]


def wide_gradient(param: Tensor) -> Tensor | None:
    """The float32 buffer that the gradient of a parameter is summed in, where a kernel may add to it itself.

    A compiled graph may not: it hands its gradients to autograd. One that is frozen has none.
    """
    if torch.compiler.is_compiling() or not param.requires_grad:
        return None
    hooks = getattr(param, "_post_accumulate_grad_hooks", None) or {}
    return next((hook.wide for hook in hooks.values() if isinstance(hook, _Sum)), None)
