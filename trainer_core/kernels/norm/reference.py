"""The specification of RMSNorm, differentiated by autograd, for tests only."""

from __future__ import annotations

from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
