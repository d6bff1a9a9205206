"""The neuron's release as an operator that keeps only what it returns, or its input when that is binary.

Inputs narrower than float32 are computed in float32 and the results rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.release.parts import (
    binary_gradients,
    graded_gradients,
    like,
    theta_gradient,
    values,
)
from trainer_core.kernels.target import launchable
from trainer_core.kernels.tensors import as_rows, wide


def _fake_release(x: Tensor, theta: Tensor, two_sided: bool, binary: bool) -> Tensor:
    return like(x)


@operator("release", fake=_fake_release)
def _release(x: Tensor, theta: Tensor, two_sided: bool, binary: bool) -> Tensor:
    if launchable(x, theta):
        from trainer_core.kernels.release.launch import release_triton

        plain = release_triton(as_rows(x), theta, None, None, two_sided=two_sided, binary=binary)
        return plain.view(x.shape)
    rows = wide(as_rows(x))
    return values(rows, theta.abs().to(rows.dtype), two_sided, binary).to(x.dtype).view(x.shape)


def _fake_release_backward(
    grad: Tensor, kept: Tensor, theta: Tensor, two_sided: bool, binary: bool
) -> tuple[Tensor, Tensor]:
    return like(grad), torch.empty_like(theta)


@operator("release_backward", fake=_fake_release_backward)
def _release_backward(
    grad: Tensor, kept: Tensor, theta: Tensor, two_sided: bool, binary: bool
) -> tuple[Tensor, Tensor]:
    """`kept` is x of a binary release and what a graded one gave: its sign says where x passed theta."""
    if launchable(grad, kept, theta):
        from trainer_core.kernels.release.launch import release_backward_triton

        d_x, d_t = release_backward_triton(
            as_rows(grad),
            as_rows(kept),
            theta if binary else torch.zeros_like(theta),
            None,
            None,
            two_sided=two_sided,
            binary=binary,
        )
        return d_x.view(grad.shape), theta_gradient(d_t, theta)
    rows, g = wide(as_rows(kept)), wide(as_rows(grad))
    if binary:
        d_x, d_t = binary_gradients(g, rows, theta.abs().to(rows.dtype), two_sided)
    else:
        d_x, d_t = graded_gradients(g, rows, two_sided)
    return d_x.to(grad.dtype).view(grad.shape), theta_gradient(d_t, theta)


def _setup_release(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, theta, ctx.two_sided, ctx.binary = inputs
    ctx.save_for_backward(x if ctx.binary else output, theta)


def _backward_release(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    kept, theta = ctx.saved_tensors
    return *_release_backward(grad.contiguous(), kept, theta, ctx.two_sided, ctx.binary), None, None


differentiate("release", _backward_release, setup=_setup_release)


def release(x: Tensor, theta: Tensor, *, two_sided: bool = False, binary: bool = False) -> Tensor:
    """What neurons of potential x [..., C] release over thresholds |theta| [C], in the dtype of x."""
    out: Tensor = _release(x, theta, two_sided, binary)
    return out
