"""The half-split rotation with its backward pass, which is the rotation by the opposite angle.

Saves nothing but the tables. The result is contiguous whatever the strides of the input, unless a kernel may
leave it as the input lies. It is computed in the dtype of the tables, by a kernel in float32; rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer_core.kernels.register import operator
from trainer_core.kernels.target import launchable


def launches(x: Tensor, cos: Tensor) -> bool:
    """Whether there is a kernel for these tensors on their device."""
    return launchable(x, cos) and x.ndim == 4 and x.numel() > 0


def _empty(x: Tensor, keep_layout: bool) -> Tensor:
    layout = torch.preserve_format if keep_layout else torch.contiguous_format
    out = torch.empty_like(x, memory_format=layout)
    return out if out.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake(x: Tensor, cos: Tensor, sin: Tensor, sign: int, keep_layout: bool) -> Tensor:
    return _empty(x, keep_layout)


@operator("rotate", fake=_fake)
def rotated_by_kernel(x: Tensor, cos: Tensor, sin: Tensor, sign: int, keep_layout: bool) -> Tensor:
    """x [B, H, T, d] rotated forth, sign 1, or back, sign -1."""
    from trainer_core.kernels.rope.triton import rotate_triton

    out = _empty(x, keep_layout)
    x = x if x.stride(-1) == 1 else x.contiguous()
    rotate_triton(x, cos.contiguous(), sin.contiguous(), out, sign)
    return out


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, sign: int, keep_layout: bool) -> Tensor:
    if launches(x, cos):
        by_kernel: Tensor = rotated_by_kernel(x, cos, sin, sign, keep_layout)
        return by_kernel
    first, second = x.to(cos.dtype).chunk(2, -1)
    out = torch.empty(x.shape, dtype=cos.dtype, device=x.device)
    out_first, out_second = out.chunk(2, -1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin, value=sign)
    return out.to(x.dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, keep_layout: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.keep_layout = keep_layout
        return _rotated(x, cos, sin, 1, keep_layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(grad, cos, sin, -1, ctx.keep_layout), None, None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, keep_layout: bool = False) -> Tensor:
    """Pair j is (x[j], x[j + d/2]); x [..., T, d], cos and sin [T, d/2].

    With `keep_layout` a kernel leaves the axes in memory in the order of x, for who takes any strides.
    """
    out: Tensor = _Rotate.apply(x, cos, sin, keep_layout)  # type: ignore[no-untyped-call]
    return out
