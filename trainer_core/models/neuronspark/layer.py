"""What the layers share: the tokens they run over, watching them, projections beside a float32 stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer_core.models.blocks import Linear

Note = Callable[[str, Tensor], None]
"""Takes the name and value of an inner quantity of a layer."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """The tokens that a pass runs over, alike for all layers: the last T of S events."""

    cos: Tensor
    """Rotary table [T, d / 2] at the positions of the tokens."""
    sin: Tensor
    """Rotary table [T, d / 2]."""
    ids: Tensor
    """The tokens [B, T]."""
    before: Tensor
    """The token before each event [B, S], -1 for none."""
    seen: Tensor
    """Whether a token occurred earlier in its row [B, 1, T], bool."""


def project(x: Tensor, linear: Linear) -> Tensor:
    """x weight^T in the dtype of the weight, which may be narrower than the residual stream."""
    return F.linear(x.to(linear.weight.dtype), linear.weight)


def wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
