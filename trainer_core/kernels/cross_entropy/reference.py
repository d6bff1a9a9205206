"""The specification of the head's cross-entropy: all logits at once, for tests only."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

IGNORE_INDEX = -100
"""Target that counts neither in the loss nor in the number of targets."""


def linear_cross_entropy_reference(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Sum over targets other than -100 of -log softmax(hidden weight^T)[target]."""
    return F.cross_entropy(hidden @ weight.t(), targets, ignore_index=IGNORE_INDEX, reduction="sum")
