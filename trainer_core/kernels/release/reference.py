"""The specification of the neuron's release, in plain torch and differentiated by autograd.

With t = |theta| per channel (its subgradient at theta = 0 is 0):

    graded, one-sided   o = max(x - t, 0)
    graded, two-sided   o = sign(x) max(|x| - t, 0)                      an ON and an OFF unit
    binary, one-sided   o = (1 + t) H(x - t)                             H(y) = 1 where y > 0, else 0
    binary, two-sided   o = (1 + t) (H(x - t) - H(-x - t))

What is not a number is released as such, so that a broken layer is not one that adds nothing.

A graded release has its exact gradient. In the backward pass of a binary one the derivative of H(y) is that
of a sigmoid, a s (1 - s) with s = sigmoid(a y) and the sharpness a = min(4, 4 / t), itself a constant: its
peak a / 4 is at most 1, and a large threshold widens it. So for the one-sided release

    do/dx = (1 + t) a s (1 - s)
    do/dt = H(x - t) - (1 + t) a s (1 - s),      do/dtheta = sign(theta) do/dt.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

SHARPNESS = 4.0
"""Largest sharpness of the surrogate; the steepest slope is a quarter of it."""


class _Step(torch.autograd.Function):
    """H(y), with the derivative of sigmoid(a y) in the backward pass."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(y, a)
        return torch.where(y.isnan(), y, (y > 0).to(y.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        y, a = ctx.saved_tensors
        s = torch.sigmoid(a * y)
        return grad * a * s * (1 - s), None


def sharpness(t: Tensor) -> Tensor:
    """a = min(4, 4 / t) of thresholds t >= 0."""
    return SHARPNESS / t.clamp(min=1)


def release_reference(x: Tensor, theta: Tensor, *, two_sided: bool = False, binary: bool = False) -> Tensor:
    """What neurons [..., C] of potential x release over thresholds theta [C]."""
    t = theta.abs()
    if not binary:
        on = F.relu(x - t)
        return on - F.relu(-x - t) if two_sided else on
    a = sharpness(t.detach())
    on = _Step.apply(x - t, a)  # type: ignore[no-untyped-call]
    off = _Step.apply(-x - t, a) if two_sided else 0  # type: ignore[no-untyped-call]
    released: Tensor = (1 + t) * (on - off)
    return released


def fired_reference(x: Tensor, theta: Tensor, *, two_sided: bool = False) -> Tensor:
    """Which neurons release anything."""
    return (x.abs() if two_sided else x) > theta.abs()


def norm_release_gate_reference(
    s: Tensor, gain: Tensor, theta: Tensor, z: Tensor, eps: float, *, binary: bool = False
) -> Tensor:
    """release(RMSNorm(s)) * silu(z) for s and z [..., C], gain and theta [C]."""
    normed = s * (s.square().mean(-1, keepdim=True) + eps).rsqrt() * gain
    return release_reference(normed, theta, binary=binary) * F.silu(z)


def release_product_reference(
    g: Tensor, u: Tensor, theta_g: Tensor, theta_u: Tensor, *, binary: bool = False
) -> Tensor:
    """release(g) * release(u) for g and u [..., F] over thresholds [F]."""
    return release_reference(g, theta_g, binary=binary) * release_reference(u, theta_u, binary=binary)
