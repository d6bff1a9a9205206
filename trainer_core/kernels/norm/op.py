"""RMSNorm with an explicit backward pass: far fewer passes over memory than autograd's composite.

Saves the input and one number per row. Gradients are sums in a fixed order. With narrower inputs it computes
in float32 and rounds the results once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        wide = _wide(rows)
        squares = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_()
        scale = squares.div_(rows.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(rows, weight, scale)
        return torch.mul(wide, scale).mul_(_wide(weight)).to(x.dtype).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        narrow, narrow_weight, scale = ctx.saved_tensors
        rows, weight = _wide(narrow), _wide(narrow_weight)
        g = _wide(grad.reshape(rows.shape))
        products = g * rows
        d_weight = torch.mv(products.t(), scale[:, 0])
        pull = torch.mv(products, weight)[:, None] * scale.pow(3) / rows.shape[-1]
        d_rows = torch.mul(g, weight).mul_(scale).addcmul_(rows, pull, value=-1)
        return d_rows.to(narrow.dtype).view(grad.shape), d_weight.to(narrow_weight.dtype), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    out: Tensor = _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out
