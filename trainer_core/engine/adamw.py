"""Clipped AdamW with decoupled decay over flat ranges; an update that is not ok leaves every bit in place.

Two implementations of one function: `update_reference` is the specification and runs on every device without
a host read; `update_cpu` is torch's fused loop, one pass over memory. Both zero G, and both *select* the old
state when the update is skipped: a multiplication by 0 would let NaN through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

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


AdamWUpdate = Callable[[Buffers, Coefficients], None]


def update_reference(b: Buffers, c: Coefficients) -> None:
    """The formula, without branches or host reads."""
    dtype = b.P.dtype
    g = b.G * c.clip.to(dtype)
    m = torch.lerp(b.M, g, (1 - c.beta1).to(dtype))
    v = b.V * c.beta2.to(dtype) + g.square() * (1 - c.beta2).to(dtype)
    denominator = v.sqrt() / (1 - c.products[1]).sqrt().to(dtype) + c.eps.to(dtype)
    p = b.P * (1 - c.lr * c.weight_decay).to(dtype)
    p -= m / denominator * (c.lr / (1 - c.products[0])).to(dtype)
    b.P.copy_(torch.where(c.ok, p, b.P))
    b.M.copy_(torch.where(c.ok, m, b.M))
    b.V.copy_(torch.where(c.ok, v, b.V))
    b.G.zero_()


def update_cpu(b: Buffers, c: Coefficients) -> None:
    """The same in one fused pass; scalars are read on the host, which on a CPU waits for nothing."""
    if c.ok.item():
        if c.clip.item() != 1.0:
            b.G.mul_(c.clip.to(b.G.dtype))
        torch._fused_adamw_(
            [b.P],
            [b.G],
            [b.M],
            [b.V],
            [],
            [c.applied.to(torch.float32)],
            lr=float(c.lr),
            beta1=float(c.beta1),
            beta2=float(c.beta2),
            weight_decay=float(c.weight_decay),
            eps=float(c.eps),
            amsgrad=False,
            maximize=False,
        )
    b.G.zero_()


@cache
def has_fused_cpu() -> bool:
    """Whether this torch has the fused loop for the CPU, shown by one step of it."""
    p, g, m, v = torch.ones(4), torch.ones(4), torch.zeros(4), torch.zeros(4)
    try:
        torch._fused_adamw_(
            [p],
            [g],
            [m],
            [v],
            [],
            [torch.ones(())],
            lr=0.1,
            beta1=0.5,
            beta2=0.5,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
    except (AttributeError, TypeError, NotImplementedError, RuntimeError):
        return False
    return abs(float(p[0]) - 0.9) < 1e-5


def choose(device: torch.device) -> AdamWUpdate:
    """The implementation for a device."""
    return update_cpu if device.type == "cpu" and has_fused_cpu() else update_reference
