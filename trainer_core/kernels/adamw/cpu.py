"""The update on a CPU: torch's fused loop over the flat range, then what follows from the new parameters."""

from __future__ import annotations

from functools import cache

import torch

from trainer_core.kernels.adamw.reference import Buffers, Coefficients


def update_cpu(b: Buffers, c: Coefficients) -> None:
    """The specification in one pass; scalars are read on the host, which on a CPU waits for nothing."""
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
        if b.E is not None:
            assert c.ema_weight is not None, "a moving average without its weight"
            b.E.lerp_(b.P, float(c.ema_weight))
        if b.W is not None:
            b.W.copy_(b.P)
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
