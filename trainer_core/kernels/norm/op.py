"""RMSNorm with an explicit backward pass: far fewer passes over memory than autograd's composite.

Saves the input and one number per row. Gradients are sums in a fixed order. With narrower inputs it computes
in float32 and rounds the results once. On a GPU each way is one kernel, behind an operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer_core.kernels.register import operator
from trainer_core.kernels.target import launchable
from trainer_core.kernels.tensors import as_rows, wide

WIDEST = 8192
"""Longest row of the kernels."""


def launches(x: Tensor, weight: Tensor) -> bool:
    """Whether there are kernels for these tensors on their device."""
    return launchable(x, weight) and 0 < x.shape[-1] <= WIDEST and x.numel() > 0


def _fake_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[0], 1, dtype=torch.float32)


@operator("rms_norm", fake=_fake_forward)
def norm_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The result and the scales [n, 1] of rows x [n, C], by a kernel."""
    from trainer_core.kernels.norm.triton import norm_triton

    return norm_triton(x, weight, eps)


def _fake_backward(grad: Tensor, x: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight)


@operator("rms_norm_backward", fake=_fake_backward)
def norm_backward(grad: Tensor, x: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of rows x [n, C] and of the weight, by a kernel."""
    from trainer_core.kernels.norm.triton import norm_backward_triton

    d_x, d_weight = norm_backward_triton(grad, x, weight, scales)
    return d_x, d_weight.to(weight.dtype)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if launches(x, weight):
            rows = as_rows(x)
            out, scale = norm_forward(rows, weight, eps)
            ctx.save_for_backward(rows, weight, scale)
            whole: Tensor = out.view(x.shape)
            return whole
        rows = x.reshape(-1, x.shape[-1])
        widened = wide(rows)
        squares = torch.linalg.vector_norm(widened, dim=-1, keepdim=True).square_()
        scale = squares.div_(rows.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(rows, weight, scale)
        return torch.mul(widened, scale).mul_(wide(weight)).to(x.dtype).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        narrow, narrow_weight, scale = ctx.saved_tensors
        if launches(narrow, narrow_weight):
            d_x, d_gain = norm_backward(as_rows(grad), narrow, narrow_weight, scale)
            return d_x.view(grad.shape), d_gain, None
        rows, weight = wide(narrow), wide(narrow_weight)
        g = wide(grad.reshape(rows.shape))
        products = g * rows
        d_weight = torch.mv(products.t(), scale[:, 0])
        pull = torch.mv(products, weight)[:, None] * scale.pow(3) / rows.shape[-1]
        d_rows = torch.mul(g, weight).mul_(scale).addcmul_(rows, pull, value=-1)
        return d_rows.to(narrow.dtype).view(grad.shape), d_weight.to(narrow_weight.dtype), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    out: Tensor = _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out
