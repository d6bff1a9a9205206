"""The tokens of a pass: its rows, the boundaries in them, and their segments of the training's row length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """B rows of T tokens."""

    ids: Tensor
    """The tokens [B, T]."""
    eos: int
    """The token that ends a document."""
    train_length: int
    """Row length of the training."""
    attention: bool
    """Whether the weights of the pool reads are looked at in this pass."""

    @property
    def boundary(self) -> Tensor:
        """Whether a token ends a document and another one follows in the row: bool [B, T]."""
        ends = self.ids == self.eos
        return ends & (torch.arange(ends.shape[1], device=ends.device) < ends.shape[1] - 1)

    @property
    def near(self) -> Tensor:
        """Whether a token is one of the two of a boundary, the end or the first one after it: bool [B, T]."""
        ends = self.boundary
        return ends | F.pad(ends[:, :-1], (1, 0))

    @property
    def before(self) -> Tensor:
        """The token before each one [B, T], -1 for none."""
        return F.pad(self.ids[:, :-1], (1, 0), value=-1)

    def segments(self) -> Iterator[tuple[int, int]]:
        """Start and end of each segment of the training's row length; the last one may be shorter."""
        T = self.ids.shape[1]
        for start in range(0, T, self.train_length):
            yield start, min(start + self.train_length, T)
