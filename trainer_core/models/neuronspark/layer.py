"""What the layers share: the tokens they run over, watching them, projections beside a float32 stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional as F

from trainer_core.models.blocks import Embedding, Linear

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
    values: Tensor | None
    """The table of values [n n, dv] where all layers share one."""


class Layer(Protocol):
    """A layer of either kind; h is the residual stream [B, T, D]."""

    def __call__(
        self, h: Tensor, context: Context, *, redo: bool = False, note: Note | None = None
    ) -> Tensor:
        """The residual stream after it; with `redo` the backward pass runs its neurons again."""
        ...

    def init_state(self, rows: int) -> Any:
        """The state before the first token."""
        ...

    def advance(self, h: Tensor, context: Context, state: Any) -> tuple[Tensor, Any]:
        """The residual stream of the next tokens, and the state after them."""
        ...


def project(x: Tensor, linear: Linear | Embedding) -> Tensor:
    """x weight^T in the dtype of the weight, which may be narrower than the residual stream."""
    return F.linear(x.to(linear.weight.dtype), linear.weight)
