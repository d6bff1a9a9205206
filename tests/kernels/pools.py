"""Pools of events with all that the logits are made of, for the tests of the pool read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

NAMES = ("q", "k", "v", "clock", "log_write", "ids", "before", "match")
"""Arguments of the pool read, in their order."""

GRADIENTS = ("q", "k", "v", "clock", "log_write", "match")
"""Those that have a gradient."""


@dataclass(frozen=True)
class Pool:
    """Arguments of one pool read, and the gradient of its output."""

    tensors: Mapping[str, Tensor]
    """Arguments by name."""
    grad: Tensor
    """[B, H, T, d]."""

    def arguments(self) -> list[Tensor]:
        return [self.tensors[name] for name in NAMES]

    def with_tensors(self, others: Mapping[str, Tensor]) -> Pool:
        """With other arguments in the place of some."""
        return replace(self, tensors={**self.tensors, **others})

    def to(self, kind: torch.dtype | str, names: Sequence[str] = GRADIENTS) -> Pool:
        """With the named arguments as leaves of another dtype, or all on another device."""
        names = names if isinstance(kind, torch.dtype) else NAMES
        moved = {name: self.tensors[name].detach().to(kind) for name in names}
        leaves = {name: x.requires_grad_(x.is_floating_point()) for name, x in moved.items()}
        grad = self.grad.to(kind) if names in (GRADIENTS, NAMES) else self.grad
        return replace(self, tensors={**self.tensors, **leaves}, grad=grad)

    def cut(self, first: int, end: int) -> Pool:
        """The queries of some events of a whole row, and the events that they may read."""
        own = {name: x[:, :, first:end] for name, x in self.tensors.items() if name in ("q", "match")}
        own["ids"] = self.tensors["ids"][:, first:end]
        own["before"] = self.tensors["before"][:, :end]
        read = {name: self.tensors[name][:, :, :end] for name in ("k", "v", "clock", "log_write")}
        return Pool({**own, **read}, self.grad[:, :, first:end])


def pool(
    T: int,
    S: int,
    H: int,
    K: int,
    *,
    d: int = 8,
    rows: int = 2,
    vocabulary: int = 7,
    dtype: torch.dtype,
    scale: float = 1.0,
    clock_step: float = 0.05,
    log_write: float = -2.0,
    match: float = 3.0,
    seed: int = 0,
) -> Pool:
    """T queries of S events; values about `scale`, clocks that step up to `clock_step` per event."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64) * scale

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    floats = {
        "q": normal(rows, H, T, d),
        "k": normal(rows, K, S, d),
        "v": normal(rows, K, S, d),
        "clock": (uniform(rows, H, S) * clock_step).cumsum(-1),
        "log_write": log_write * uniform(rows, K, S),
        "match": match * uniform(rows, H, T),
    }
    ids = torch.randint(0, vocabulary, (rows, S), generator=g)
    before = torch.cat([torch.full((rows, 1), -1), ids[:, :-1]], 1)
    tensors = {name: x.to(dtype).requires_grad_() for name, x in floats.items()}
    return Pool(
        {**tensors, "ids": ids[:, S - T :], "before": before}, normal(rows, H, T, d).to(dtype) / scale
    )
