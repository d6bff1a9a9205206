"""The specification of the update: clipped AdamW with decoupled decay, moving average and bf16 copy.

Works on contiguous ranges of the flat buffers. An update that is not ok leaves every bit of the state in
place; gradients are zero afterwards in either case. The old state is *selected* when an update is skipped:
a multiplication by 0 would let NaN through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """Contiguous slices of the flat buffers of one parameter group."""

    P: Tensor
    """Parameters."""
    G: Tensor
    """Gradients; zero afterwards."""
    M: Tensor
    """First moments."""
    V: Tensor
    """Second moments."""
    E: Tensor | None = None
    """Moving average of the parameters, when there is one."""
    W: Tensor | None = None
    """The parameters rounded to bfloat16, when the model computes with such a copy."""


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Float64 scalars on the device that one group's update reads; `ok` is bool, `applied` int64."""

    lr: Tensor
    """Learning rate of the group."""
    weight_decay: Tensor
    """Decoupled decay of the group."""
    beta1: Tensor
    """Decay of the first moment."""
    beta2: Tensor
    """Decay of the second moment."""
    eps: Tensor
    """Added to the root of the second moment."""
    clip: Tensor
    """Factor on the gradient, min(1, clip / (norm + 1e-6))."""
    products: Tensor
    """beta1^t and beta2^t, this update included."""
    applied: Tensor
    """Number of applied updates, this one included."""
    ok: Tensor
    """Whether the update applies."""
    ema_weight: Tensor | None = None
    """Weight of the new parameters in their moving average, needed where there is one; 1 copies them."""


AdamWUpdate = Callable[[Buffers, Coefficients], None]


def update_reference(b: Buffers, c: Coefficients) -> None:
    """The formula, without branches on data or host reads."""
    dtype = b.P.dtype
    g = b.G * c.clip.to(dtype)
    m = torch.lerp(b.M, g, (1 - c.beta1).to(dtype))
    v = b.V * c.beta2.to(dtype) + g.square() * (1 - c.beta2).to(dtype)
    denominator = v.sqrt() / (1 - c.products[1]).sqrt().to(dtype) + c.eps.to(dtype)
    p = b.P * (1 - c.lr * c.weight_decay).to(dtype)
    p -= m / denominator * (c.lr / (1 - c.products[0])).to(dtype)
    if b.E is not None:
        assert c.ema_weight is not None, "a moving average without its weight"
        weight = c.ema_weight.to(dtype)
        _select(c.ok, torch.where(weight == 1, p, torch.lerp(b.E, p, weight)), b.E)
    if b.W is not None:
        _select(c.ok, p.to(b.W.dtype), b.W)
    _select(c.ok, p, b.P)
    _select(c.ok, m, b.M)
    _select(c.ok, v, b.V)
    b.G.zero_()


def _select(ok: Tensor, new: Tensor, state: Tensor) -> None:
    state.copy_(torch.where(ok, new, state))
