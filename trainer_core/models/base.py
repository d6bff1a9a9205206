"""What a line asks of a model of any family. Adding a family means one subclass of Model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from trainer_core.engine.layout import ParamGroup
from trainer_core.kernels.cost import Cost
from trainer_core.kernels.dropout import dropout


class ModelConfig(Protocol):
    """What every family's configuration has."""

    @property
    def rope_max_seq_len(self) -> int:
        """Longest row the model takes."""
        ...


class Model(nn.Module):
    """A language model that a line can train."""

    recomputation: ClassVar[tuple[str, ...]] = ("none",)
    """What `ac` may be, the cheapest to compute first, which is "none"."""
    config: ModelConfig
    """Its resolved configuration."""
    vocab_size: int
    """Number of token ids."""
    dropout_counter: Tensor | None = None
    """Seed, update and micro-batch, int64 [3] on the device; given by the state that it is bound to."""

    @abstractmethod
    def loss(self, ids: Tensor, targets: Tensor, ac: str = "none") -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the targets other than -100, and their number: scalars on the device.

        ids and targets are [B, T] int64; `ac` names what the backward pass recomputes.
        """

    @abstractmethod
    def logits(self, ids: Tensor) -> Tensor:
        """Scores of the next token [B, T, V] of ids [B, T]; what trains at random (dropout) is left out."""

    @abstractmethod
    def init_state(self, rows: int) -> Any:
        """What `advance` knows before the first token of `rows` rows, on the model's device.

        Only the family looks inside. A state is never changed: one may be advanced in several ways.
        """

    @abstractmethod
    def advance(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Feeds the next t tokens of each row, ids [B, t]; their scores [B, t, V] and the state after them.

        The scores are those of `logits` over all tokens fed so far, but for rounding.
        """

    @abstractmethod
    def param_groups(self) -> Sequence[ParamGroup]:
        """Groups of the optimizer, in a fixed order that covers every parameter once."""

    @abstractmethod
    def layer_label(self, name: str) -> str:
        """Label of a parameter's layer in norms and plots."""

    @abstractmethod
    def flops_per_token(self, T: int) -> float:
        """FLOPs of forward and backward per token at row length T, without recomputation."""

    def recomputed_flops_per_token(self, T: int, ac: str) -> float | None:
        """FLOPs that recomputation adds per token at row length T; None for a mode whose cost is not known.

        "full" runs the blocks' forward pass, a third of their FLOPs, once more. Their matrices are those
        whose label is a layer's; what grows with T is their attention, the difference to flops_per_token(0).
        """
        if ac == "none":
            return 0.0
        if ac != "full":
            return None
        matrices = sum(
            param.numel()
            for name, param in self.named_parameters()
            if param.ndim >= 2 and self.layer_label(name).startswith("layer")
        )
        attention = self.flops_per_token(T) - self.flops_per_token(0)
        return (6.0 * matrices + attention) / 3

    def kernel_costs(self, rows: int, T: int) -> dict[str, tuple[int, Cost]]:
        """Of kernels that only this family has, in bf16 on a GPU: runs in a micro-batch, and cost of one."""
        return {}

    def dropping(self) -> Tensor | None:
        """The counter that decides what is dropped while the model trains; None in evaluations."""
        if not torch.is_grad_enabled():
            return None
        assert self.dropout_counter is not None, "the model is bound to no state"
        return self.dropout_counter

    def dropped(self, x: Tensor, site: int, p: float) -> Tensor:
        """Drops elements of x with probability p while it trains; `site` tells apart the places that drop.

        New elements in every micro-batch, the same ones where a pass is repeated; none in evaluations.
        """
        counter = self.dropping()
        return x if counter is None else dropout(x, counter, site, p)

    def probe(self, rows: Tensor, *, train_length: int, eos: int) -> dict[str, float]:
        """Internal quantities on given rows by metric name; empty where a family has none beside the loss.

        rows are [R, L] int64, `train_length` the row length of the training, `eos` the id between documents.
        """
        return {}
