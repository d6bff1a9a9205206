"""The half-split rotation with its backward pass, which is the rotation by the opposite angle.

Saves nothing but the tables. The result is contiguous whatever the strides of the input; it is computed in
the dtype of the tables and rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    first, second = x.to(cos.dtype).chunk(2, -1)
    out = torch.empty(x.shape, dtype=cos.dtype, device=x.device)
    out_first, out_second = out.chunk(2, -1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin, value=sign)
    return out.to(x.dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(grad, cos, sin, -1), None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pair j is (x[j], x[j + d/2]); x [..., T, d], cos and sin [T, d/2]."""
    out: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return out
