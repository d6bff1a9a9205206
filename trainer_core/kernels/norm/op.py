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


def norm_gradients(grad: Tensor, rows: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of rows [n, C] and weight [C] of a norm that has scaled the rows by `scale` [n, 1].

    Torch's fused gradient of LayerNorm, told that the mean of every row is 0: beside ours it holds that of
    the mean, one number per row, which is added back.
    """
    zero = torch.zeros_like(scale)
    d_rows, d_weight, _ = torch.ops.aten.native_layer_norm_backward(
        grad, rows, weight.shape, zero, scale, weight, None, [True, True, False]
    )
    along_mean = torch.mv(grad, weight)[:, None].mul_(scale).div_(rows.shape[-1])
    return d_rows.add_(along_mean), d_weight


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
        d_rows, d_weight = norm_gradients(wide(grad.reshape(rows.shape)), rows, weight, scale)
        return d_rows.to(narrow.dtype).view(grad.shape), d_weight.to(narrow_weight.dtype), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    out: Tensor = _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out
