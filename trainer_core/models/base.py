"""What a line asks of a model of any family. Adding a family means one subclass of Model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trainer_core.engine.layout import ParamGroup
from trainer_core.kernels.dropout import dropout


class ModelConfig(Protocol):
    """What every family's configuration has."""

    @property
    def rope_max_seq_len(self) -> int:
        """Longest row the model takes."""
        ...


class Model(nn.Module):
    """A language model that a line can train."""

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
    def param_groups(self) -> Sequence[ParamGroup]:
        """Groups of the optimizer, in a fixed order that covers every parameter once."""

    @abstractmethod
    def layer_label(self, name: str) -> str:
        """Label of a parameter's layer in norms and plots."""

    @abstractmethod
    def flops_per_token(self, T: int) -> float:
        """FLOPs of forward and backward per token at row length T, without recomputation."""

    def dropped(self, x: Tensor, site: int, p: float) -> Tensor:
        """Drops elements of x with probability p while it trains; `site` tells apart the places that drop.

        New elements in every micro-batch, the same ones where a pass is repeated; none in evaluations.
        """
        if not torch.is_grad_enabled():
            return x
        assert self.dropout_counter is not None, "the model is bound to no state"
        return dropout(x, self.dropout_counter, site, p)

    def probe(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Internal quantities on given rows by metric name; empty where a family has none beside the loss."""
        return {}
