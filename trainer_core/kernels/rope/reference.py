"""The specification of the half-split rotation, differentiated by autograd, for tests only."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pair j is (x[j], x[j + d/2]); x [..., T, d], cos and sin [T, d/2]."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
