"""The update on a CPU: torch's fused loop over the flat range, then what follows from the new parameters.

Nothing is cut in pieces to stay in a cache: the fused loop writes all but the average, and shorter calls cost
more than the few bytes they save (measured).
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from trainer_core.kernels.adamw.reference import Buffers, Coefficients


def update_cpu(b: Buffers, c: Coefficients) -> None:
    """The specification in one pass; scalars are read on the host, which on a CPU waits for nothing."""
    if c.ok.item():
        _fused_update(b, c)
        if b.E is not None:
            assert c.ema_weight is not None, "a moving average without its weight"
            weight = float(c.ema_weight)
            b.E.copy_(b.P) if weight == 1 else b.E.lerp_(b.P, weight)
        if b.W is not None:
            b.W.copy_(b.P)
    _zero(b.G)


def _fused_update(b: Buffers, c: Coefficients) -> None:
    clip = float(c.clip)
    inverse = None
    if clip != 1.0 and b.G.dtype == torch.float32:
        inverse = torch.tensor(1 / clip if clip else torch.inf)  # the loop divides, in float32, on its way
    elif clip != 1.0:
        b.G.mul_(clip)
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
        grad_scale=inverse,
    )


def _zero(t: Tensor) -> None:
    """The C library's memset does not read what it overwrites, which torch's loop does: half the time."""
    assert t.device.type == "cpu" and t.is_contiguous()
    ctypes.memset(t.data_ptr(), 0, t.numel() * t.element_size())


@cache
def has_fused_cpu() -> bool:
    """Whether this torch has the fused loop for the CPU, shown by one update of it."""
    one = torch.ones((), dtype=torch.float64)
    b = Buffers(P=torch.ones(4), G=torch.ones(4), M=torch.zeros(4), V=torch.zeros(4))
    coefficients = Coefficients(
        lr=one * 0.1,
        weight_decay=one * 0,
        beta1=one * 0.5,
        beta2=one * 0.5,
        eps=one * 1e-8,
        clip=one * 0.5,
        products=torch.stack((one, one)) * 0.5,
        applied=torch.ones((), dtype=torch.int64),
        ok=one > 0,
    )
    try:
        update_cpu(b, coefficients)
    except (AttributeError, TypeError, NotImplementedError, RuntimeError):
        return False
    return abs(float(b.P[0]) - 0.9) < 1e-5 and abs(float(b.M[0]) - 0.25) < 1e-6
