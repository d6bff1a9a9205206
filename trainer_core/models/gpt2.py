"""The GPT-2 family: pre-LayerNorm with biases, learnt positions, dropout, the embedding as head.

Parameters have the names and the layout of the published weights: wte, wpe, h.i.{ln_1, attn.c_attn,
attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj}, ln_f, with the weights of projections [inputs, outputs]. Dropout
hashes a counter, so a recomputed pass drops the same elements, and an evaluation drops none.
Shapes: B rows, T tokens, D width, H heads, d head width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer_core.engine.layout import ParamGroup
from trainer_core.errors import Refused
from trainer_core.kernels.attention import ATTENTION
from trainer_core.kernels.dropout import dropout
from trainer_core.models.base import Model
from trainer_core.models.blocks import (
    Embedding,
    KeysValues,
    LayerNorm,
    attend_after,
    head_loss,
    init_normal,
    no_past,
    recomputed,
)
from trainer_core.models.settings import config_problems, no_multiple

SITES = 1 << 16
"""Sites of dropout that a block of the model has for itself; attention takes one per block of queries."""

_ATTENDED, _FED, _PROBABILITIES = 0, 1, 2
"""Sites of a block, the last one first of many."""


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """Shape of a GPT-2."""

    layers: int
    """Number of blocks."""
    width: int
    """Width of the residual stream; the feed-forward part is four times as wide."""
    heads: int
    """Attention heads; width / heads is the width of a head."""
    n_positions: int = 1_024
    """Learnt positions: the longest row."""
    dropout: float = 0.1
    """Probability of dropping an element of embeddings, attention weights and what a block adds."""
    norm_eps: float = 1e-5
    """Added to the variance in LayerNorm."""
    init_std: float = 0.02
    """Standard deviation of the initial weights; residual projections have it over sqrt(2 layers)."""
    attention: str = "fast"
    """fast: no score of a later key is made; reference: an explicit softmax over whole rows."""

    @property
    def rope_max_seq_len(self) -> int:
        """Longest row, by the name that every family has."""
        return self.n_positions

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> GPT2Config:
        """Checks a user's configuration and reports every problem of it."""
        choices = {"attention": tuple(ATTENTION)}
        problems = config_problems(
            cls, config, family="gpt2", choices=choices, shares=("dropout",), misfits=_misfits
        )
        if problems:
            raise Refused(problems)
        return cls(**config)


def _misfits(sound: Mapping[str, Any]) -> list[str]:
    """What does not fit together."""
    return no_multiple(sound, "width", of="heads")


class Projection(nn.Module):
    """x W + b with W [inputs, outputs]; draws no initial values."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(outputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


class Attention(nn.Module):
    """Multi-head causal self-attention with dropped probabilities."""

    def __init__(self, c: GPT2Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.dropout = c.heads, c.dropout
        self.attend = ATTENTION[c.attention]
        self.c_attn = Projection(c.width, 3 * c.width, dtype)
        self.c_proj = Projection(c.width, c.width, dtype)

    def forward(self, x_BTD: Tensor, counter: Tensor | None, site: int) -> Tensor:
        return self._out(self.attend(*self._heads(x_BTD), counter, site, self.dropout))

    def advance(self, x_BTD: Tensor, past: KeysValues) -> tuple[Tensor, KeysValues]:
        """The same for T tokens after a past; drops nothing."""
        out_BHTd, past = attend_after(*self._heads(x_BTD), past)
        return self._out(out_BHTd), past

    def _heads(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, d]."""
        B, T, _ = x_BTD.shape
        q, k, v = (
            part.view(B, T, self.heads, -1).transpose(1, 2) for part in self.c_attn(x_BTD).chunk(3, -1)
        )
        return q, k, v

    def _out(self, out_BHTd: Tensor) -> Tensor:
        out: Tensor = self.c_proj(out_BHTd.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """W gelu(V x), with the tanh form of gelu."""

    def __init__(self, c: GPT2Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.c_fc = Projection(c.width, 4 * c.width, dtype)
        self.c_proj = Projection(4 * c.width, c.width, dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """One pre-norm transformer block; block i has the sites of dropout from (i + 1) SITES on."""

    def __init__(self, c: GPT2Config, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dropout, self.site = c.dropout, (index + 1) * SITES
        self.ln_1 = LayerNorm(c.width, c.norm_eps, dtype)
        self.attn = Attention(c, dtype)
        self.ln_2 = LayerNorm(c.width, c.norm_eps, dtype)
        self.mlp = FeedForward(c, dtype)

    def forward(self, x_BTD: Tensor, counter: Tensor | None) -> Tensor:
        attended = self.attn(self.ln_1(x_BTD), counter, self.site + _PROBABILITIES)
        x_BTD = x_BTD + self._dropped(attended, counter, _ATTENDED)
        return x_BTD + self._dropped(self.mlp(self.ln_2(x_BTD)), counter, _FED)

    def advance(self, x_BTD: Tensor, past: KeysValues) -> tuple[Tensor, KeysValues]:
        """The same for T tokens after a past; drops nothing."""
        attended, past = self.attn.advance(self.ln_1(x_BTD), past)
        x_BTD = x_BTD + attended
        return x_BTD + self.mlp(self.ln_2(x_BTD)), past

    def _dropped(self, x: Tensor, counter: Tensor | None, site: int) -> Tensor:
        return x if counter is None else dropout(x, counter, self.site + site, self.dropout)


class GPT2(Model):
    """The model; its head is the table of wte."""

    recomputation: ClassVar[tuple[str, ...]] = ("none", "full")
    config: GPT2Config

    def __init__(self, config: GPT2Config, vocab_size: int, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.wte = Embedding(vocab_size, config.width, dtype)
        self.wpe = Embedding(config.n_positions, config.width, dtype)
        self.h = nn.ModuleList(Block(config, index, dtype) for index in range(config.layers))
        self.ln_f = LayerNorm(config.width, config.norm_eps, dtype)
        self._initialize(seed)

    def _initialize(self, seed: int) -> None:
        residual_std = self.config.init_std / math.sqrt(2 * self.config.layers)
        for name, param in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(param)
            elif param.ndim == 1:
                nn.init.ones_(param)
            else:
                residual = name.endswith("c_proj.weight")
                init_normal(param, name, seed, residual_std if residual else self.config.init_std)

    def _embedded(self, ids_BT: Tensor, start: int = 0) -> Tensor:
        """Token and position embeddings [B, T, D] of tokens that stand at `start` and after it."""
        end = start + ids_BT.shape[1]
        assert end <= self.config.n_positions, f"row of {end} tokens, the model takes {self.config}"
        out: Tensor = self.wte(ids_BT) + self.wpe.weight[start:end]
        return out

    def _hidden(self, ids_BT: Tensor, ac: str, counter: Tensor | None) -> Tensor:
        """Normalised output of the last block [B, T, D]; drops nothing without a counter."""
        assert ac in self.recomputation, ac
        x_BTD = self._embedded(ids_BT)
        if counter is not None:
            x_BTD = dropout(x_BTD, counter, 0, self.config.dropout)
        for block in self.h:
            if ac == "full" and torch.is_grad_enabled():
                x_BTD = recomputed(block, x_BTD, counter)
            else:
                x_BTD = block(x_BTD, counter)
        out: Tensor = self.ln_f(x_BTD)
        return out

    def logits(self, ids: Tensor) -> Tensor:
        """Scores of the next token [B, T, V]; drops nothing."""
        return F.linear(self._hidden(ids, "none", None), self.wte.weight)

    def loss(self, ids: Tensor, targets: Tensor, ac: str = "none") -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the targets other than -100, and their number; ids, targets [B, T]."""
        counter = self.dropping() if self.config.dropout else None
        return head_loss(self._hidden(ids, ac, counter), self.wte.weight, targets)

    def init_state(self, rows: int) -> list[KeysValues]:
        """Keys and values of no token, by layer."""
        heads = self.config.heads
        return [no_past(rows, heads, self.config.width // heads, self.wte.weight) for _ in self.h]

    def advance(self, ids: Tensor, state: list[KeysValues]) -> tuple[Tensor, list[KeysValues]]:
        """Scores [B, T, V] of the next T tokens, and the keys and values with theirs."""
        x_BTD = self._embedded(ids, start=state[0][0].shape[-2])
        after = []
        for block, past in zip(self.h, state, strict=True):
            assert isinstance(block, Block)
            x_BTD, past = block.advance(x_BTD, past)
            after.append(past)
        return F.linear(self.ln_f(x_BTD), self.wte.weight), after

    def param_groups(self) -> list[ParamGroup]:
        """embed (tokens and positions) and proj decay, norm and bias do not."""
        groups: dict[str, list[tuple[str, nn.Parameter]]] = {"embed": [], "proj": [], "norm": [], "bias": []}
        for name, param in self.named_parameters():
            if name in ("wte.weight", "wpe.weight"):
                group = "embed"
            elif param.ndim >= 2:
                group = "proj"
            else:
                group = "norm" if ".ln_" in f".{name}" else "bias"
            groups[group].append((name, param))
        return [
            ParamGroup(name=name, decay=name in ("embed", "proj"), lr_mult=1.0, params=params)
            for name, params in groups.items()
        ]

    def layer_label(self, name: str) -> str:
        """layerNN, else embedding, positions or norm."""
        first, *rest = name.split(".")
        if first == "h":
            return f"layer{int(rest[0]):02d}"
        return {"wte": "embedding", "wpe": "positions", "ln_f": "norm"}[first]

    def flops_per_token(self, T: int) -> float:
        """6 x matrix parameters (the head, neither lookup) + causal attention 6 layers D T."""
        matrices = sum(param.numel() for param in self.parameters() if param.ndim >= 2)
        matrices -= self.wpe.weight.numel()
        return 6.0 * matrices + 6.0 * self.config.layers * self.config.width * T


def build(config: Mapping[str, Any], vocab_size: int, seed: int, dtype: torch.dtype) -> GPT2:
    """Builds and initialises a GPT-2; under torch.device("meta") only its shapes."""
    return GPT2(GPT2Config.read(config), vocab_size, seed, dtype)
