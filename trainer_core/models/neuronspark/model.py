"""The stack of dendritic and hippocampal layers; its head is the embedding's table.

Parameter names: embedding.weight, layers.i.* as the layers name them, norm.weight, and pkm_values where the
hippocampal layers share one table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer_core.engine.layout import ParamGroup
from trainer_core.kernels.cost import Cost
from trainer_core.kernels.pool_read import seen_before
from trainer_core.kernels.tensors import wide
from trainer_core.models.base import Model
from trainer_core.models.blocks import Embedding, RMSNorm, head_loss, recomputed, rope_tables
from trainer_core.models.neuronspark import flops, groups, probes
from trainer_core.models.neuronspark.config import NeuronSparkConfig
from trainer_core.models.neuronspark.dendritic import DendriticLayer, DendriticState
from trainer_core.models.neuronspark.hippocampal import HippocampalLayer, HippocampalState
from trainer_core.models.neuronspark.initialize import initialize
from trainer_core.models.neuronspark.kernel_costs import kernel_costs
from trainer_core.models.neuronspark.layer import Context, Layer, project

LayerNote = Callable[[int, str, Tensor], None]
"""Takes the number of a layer, and the name and value of an inner quantity of it."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What the model knows of the tokens so far."""

    ids: Tensor
    """The tokens [B, S]."""
    layers: tuple[DendriticState | HippocampalState, ...]
    """The state of each layer."""


class NeuronSpark(Model):
    """The model."""

    recomputation: ClassVar[tuple[str, ...]] = ("none", "scan", "dendritic", "hippocampal", "full")
    config: NeuronSparkConfig
    cos: Tensor
    sin: Tensor

    def __init__(self, config: NeuronSparkConfig, vocab_size: int, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding = Embedding(vocab_size, config.width, dtype)
        self.layers = nn.ModuleList(
            (HippocampalLayer if config.is_hippocampal(i) else DendriticLayer)(config, dtype)
            for i in range(config.layers)
        )
        self.norm = RMSNorm(config.width, config.norm_eps, dtype)
        self.pkm_values: nn.Parameter | None = None
        if config.pkm_shared and config.num_hippocampal:
            self.pkm_values = nn.Parameter(torch.empty(config.pkm_keys**2, config.pkm_value_dim, dtype=dtype))
        for name, table in self.tables().items():
            self.register_buffer(name, table, persistent=False)
        initialize(self, config, seed)

    def tables(self) -> dict[str, Tensor]:
        """The rotary tables, which no file of weights holds, by the name of their buffer."""
        c = self.config
        cos, sin = rope_tables(c.rope_max_seq_len, c.head_dim, c.rope_theta, self.embedding.weight.dtype)
        return {"cos": cos, "sin": sin}

    def hidden(self, ids_BT: Tensor, ac: str = "none", note: LayerNote | None = None) -> Tensor:
        """Normalised output of the last layer [B, T, D]; `note` is called with what layers know inside."""
        assert ac in self.recomputation, ac
        context = self._context(ids_BT, start=0)
        h = self._embed(ids_BT)
        for i, layer in enumerate(self._stack):
            watch = None if note is None else partial(note, i)
            run = partial(layer, context=context, redo=ac == "scan", note=watch)
            again = ac in ("full", "hippocampal" if self.config.is_hippocampal(i) else "dendritic")
            h = recomputed(run, h) if again and torch.is_grad_enabled() else run(h)
        out: Tensor = self.norm(h)
        return out

    def logits(self, ids: Tensor) -> Tensor:
        """Scores of the next token [B, T, V]."""
        return project(self.hidden(ids), self.embedding)

    def loss(self, ids: Tensor, targets: Tensor, ac: str = "none") -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the targets other than -100, and their number; ids, targets [B, T]."""
        weight = self.embedding.weight
        return head_loss(self.hidden(ids, ac).to(weight.dtype), weight, targets)

    def init_state(self, rows: int) -> State:
        """No token."""
        ids = torch.empty(rows, 0, dtype=torch.int64, device=self.embedding.weight.device)
        return State(ids=ids, layers=tuple(layer.init_state(rows) for layer in self._stack))

    def advance(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Scores [B, T, V] of the next T tokens, and the state after them."""
        start = state.ids.shape[1]
        known = torch.cat((state.ids, ids), 1)
        context = self._context(known, start=start)
        h, after = self._embed(ids), []
        for layer, before in zip(self._stack, state.layers, strict=True):
            h, now = layer.advance(h, context, before)
            after.append(now)
        return project(self.norm(h), self.embedding), State(ids=known, layers=tuple(after))

    def param_groups(self) -> list[ParamGroup]:
        """embed and proj decay; conv, norm, neuron, pkm_keys and pkm_values do not."""
        return groups.param_groups(self, self.config)

    def layer_label(self, name: str) -> str:
        """layerNN, else embed, norm or pkm_values."""
        return groups.layer_label(name)

    def flops_per_token(self, T: int) -> float:
        """Matrices, scans and pool reads, forwards and backwards (see `flops`)."""
        return flops.flops_per_token(self.config, self.vocab_size, T)

    def recomputed_flops_per_token(self, T: int, ac: str) -> float | None:
        """FLOPs that recomputation adds per token at row length T."""
        return flops.recomputed_per_token(self.config, T, ac) if ac in self.recomputation else None

    def probe(self, rows: Tensor, *, train_length: int, eos: int) -> dict[str, float]:
        """What heads keep, write, read and fire on rows [R, L] (see `probes`)."""
        return probes.probe(self, rows, train_length=train_length, eos=eos)

    def kernel_costs(self, rows: int, T: int) -> dict[str, tuple[int, Cost]]:
        """Scans of the dendritic layers, pool reads of the hippocampal ones."""
        return kernel_costs(self.config, rows, T)

    @property
    def _stack(self) -> Sequence[Layer]:
        """The layers, from the first to the last."""
        return cast("Sequence[Layer]", self.layers)

    def _embed(self, ids: Tensor) -> Tensor:
        """The residual stream [B, T, D] before the first layer."""
        x: Tensor = self.embedding(ids)
        return wide(x) if self.config.residual_fp32 else x

    def _context(self, known: Tensor, *, start: int) -> Context:
        """Of the tokens `known` [B, S] those from `start` on."""
        S = known.shape[1]
        assert self.config.rope_max_seq_len >= S, f"row of {S} tokens, the model takes {self.config}"
        return Context(
            cos=self.cos[start:S],
            sin=self.sin[start:S],
            ids=known[:, start:],
            before=F.pad(known[:, :-1], (1, 0), value=-1),
            seen=seen_before(known)[:, None, start:],
            values=self.pkm_values,
        )
