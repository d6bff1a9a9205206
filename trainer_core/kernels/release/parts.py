"""Arithmetic of the release on plain tensors, few passes over memory: values, and gradients of x and of t.

Thresholds come as t = |theta|. Everything has the dtype of its inputs: the operators widen and round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer_core.kernels.release.reference import sharpness
from trainer_core.kernels.target import target


def values(x: Tensor, t: Tensor, two_sided: bool, binary: bool) -> Tensor:
    """What is released over thresholds t >= 0; what is not a number stays so."""
    if not binary:
        return x - x.clamp(-t, t) if two_sided else torch.sub(x, t).relu_()
    # A comparison would be false at NaN, and a broken layer one that adds nothing.
    on = torch.sub(x, t).clamp_(0, 1).ceil_()
    if two_sided:
        on.add_(torch.add(x, t).clamp_(-1, 0).floor_())
    return on.mul_(1 + t)


def graded_gradients(
    grad: Tensor, out: Tensor, two_sided: bool, *, overwrite: bool = False
) -> tuple[Tensor, Tensor]:
    """Gradients of x and, summed over the rows, of t [C]; `out` is what was released, grad and out [n, C].

    With `overwrite` that of x may take the place of `grad`.
    """
    if not two_sided:
        d_x = grad if overwrite else torch.empty_like(out)
        torch.ops.aten.threshold_backward.grad_input(grad, out, 0, grad_input=d_x)  # one pass, unlike `where`
        return d_x, d_x.sum(0).neg_()
    sign = torch.sign(out)
    signed = grad * sign
    return sign.mul_(signed), signed.sum(0).neg_()


def binary_gradients(grad: Tensor, x: Tensor, t: Tensor, two_sided: bool) -> tuple[Tensor, Tensor]:
    """The same for the binary release, of the surrogate at x."""
    a = sharpness(t)
    peak = (1 + t) * a

    def side(y: Tensor) -> tuple[Tensor, Tensor]:
        """The step at y and (1 + t) times the derivative of its surrogate."""
        s = torch.sigmoid(a * y)
        return y.gt(0).to(y.dtype), s.mul_(1 - s).mul_(peak)

    step, slope = side(x - t)
    if not two_sided:
        return grad * slope, step.sub_(slope).mul_(grad).sum(0)
    step_off, slope_off = side(-x - t)
    d_t = (step - step_off).sub_(slope).add_(slope_off).mul_(grad).sum(0)
    return slope.add_(slope_off).mul_(grad), d_t


def theta_gradient(d_t: Tensor, theta: Tensor) -> Tensor:
    """From the gradient of |theta|."""
    return (d_t * theta.sign()).to(theta.dtype)


def nothing(rows: Tensor) -> Tensor:
    """In place of what is not kept."""
    return rows.new_empty(rows.shape[0], 0)


def like(x: Tensor) -> Tensor:
    """A contiguous result of the shape of x."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def keeps(*tensors: Tensor) -> bool:
    """Whether the forward pass keeps what the backward pass would otherwise compute again."""
    if not torch.is_grad_enabled():
        return False
    return all(target(t) == "cpu" and t.dtype in (torch.float32, torch.float64) for t in tensors)
