"""The Llama family: pre-RMSNorm, rotary positions by halves, SwiGLU, no biases, tied embedding.

Parameter names: embedding.weight, blocks.i.{attention_norm, attention.{q,k,v,out}_proj, ffn_norm,
ffn.{gate,up,down}_proj}.weight, norm.weight. Shapes: B rows, T tokens, D width, H heads, d head width.
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
from trainer_core.kernels.rope import rotate
from trainer_core.models.base import Model
from trainer_core.models.blocks import (
    Embedding,
    KeysValues,
    Linear,
    RMSNorm,
    attend_after,
    head_loss,
    init_normal,
    no_past,
    recomputed,
    rope_tables,
)
from trainer_core.models.settings import config_problems, no_multiple


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Shape of a Llama."""

    layers: int
    """Number of blocks."""
    width: int
    """Width of the residual stream."""
    heads: int
    """Attention heads; width / heads is the even width of a head."""
    ffn: int
    """Width inside the gated feed-forward part."""
    rope_theta: float = 10_000.0
    """Base of the rotary wavelengths."""
    rope_max_seq_len: int = 2_048
    """Longest row."""
    norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    init_std: float = 0.02
    """Standard deviation of the initial weights; output projections have it over sqrt(2 layers)."""
    attention: str = "fast"
    """fast: no score of a later key is made; reference: an explicit softmax over whole rows."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Checks a user's configuration and reports every problem of it."""
        choices = {"attention": tuple(ATTENTION)}
        problems = config_problems(cls, config, family="llama", choices=choices, misfits=_misfits)
        if problems:
            raise Refused(problems)
        return cls(**config)


def _misfits(sound: Mapping[str, Any]) -> list[str]:
    """What does not fit together."""
    return no_multiple(sound, "width", of="heads", times=2)


class Attention(nn.Module):
    """Multi-head causal self-attention."""

    def __init__(self, c: LlamaConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = c.heads
        self.attend = ATTENTION[c.attention]
        self.q_proj = Linear(c.width, c.width, dtype)
        self.k_proj = Linear(c.width, c.width, dtype)
        self.v_proj = Linear(c.width, c.width, dtype)
        self.out_proj = Linear(c.width, c.width, dtype)

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return self._out(self.attend(*self._heads(x_BTD, cos, sin)))

    def advance(self, x_BTD: Tensor, cos: Tensor, sin: Tensor, past: KeysValues) -> tuple[Tensor, KeysValues]:
        """The same for T tokens after a past."""
        out_BHTd, past = attend_after(*self._heads(x_BTD, cos, sin), past)
        return self._out(out_BHTd), past

    def _heads(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values [B, H, T, d]."""
        B, T, _ = x_BTD.shape
        q_BHTd, k_BHTd, v_BHTd = (
            proj(x_BTD).view(B, T, self.heads, -1).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q_BHTd, k_BHTd = (rotate(x, cos, sin, keep_layout=True) for x in (q_BHTd, k_BHTd))
        return q_BHTd, k_BHTd, v_BHTd

    def _out(self, out_BHTd: Tensor) -> Tensor:
        out: Tensor = self.out_proj(out_BHTd.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate x) * up x)."""

    def __init__(self, c: LlamaConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = Linear(c.width, c.ffn, dtype)
        self.up_proj = Linear(c.width, c.ffn, dtype)
        self.down_proj = Linear(c.ffn, c.width, dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, c: LlamaConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(c.width, c.norm_eps, dtype)
        self.attention = Attention(c, dtype)
        self.ffn_norm = RMSNorm(c.width, c.norm_eps, dtype)
        self.ffn = FeedForward(c, dtype)

    def forward(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos, sin)
        return self._feed(x_BTD)

    def advance(self, x_BTD: Tensor, cos: Tensor, sin: Tensor, past: KeysValues) -> tuple[Tensor, KeysValues]:
        """The same for T tokens after a past."""
        out_BTD, past = self.attention.advance(self.attention_norm(x_BTD), cos, sin, past)
        return self._feed(x_BTD + out_BTD), past

    def _feed(self, x_BTD: Tensor) -> Tensor:
        out: Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return out


class Llama(Model):
    """The model; its head is the embedding's table."""

    recomputation: ClassVar[tuple[str, ...]] = ("none", "full")
    config: LlamaConfig
    cos: Tensor
    sin: Tensor

    def __init__(self, config: LlamaConfig, vocab_size: int, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding = Embedding(vocab_size, config.width, dtype)
        self.blocks = nn.ModuleList(Block(config, dtype) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps, dtype)
        cos, sin = rope_tables(
            config.rope_max_seq_len, config.width // config.heads, config.rope_theta, dtype
        )
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialize(seed)

    def _initialize(self, seed: int) -> None:
        residual_std = self.config.init_std / math.sqrt(2 * self.config.layers)
        for name, param in self.named_parameters():
            if param.ndim == 1:
                nn.init.ones_(param)
            else:
                residual = name.endswith(("out_proj.weight", "down_proj.weight"))
                init_normal(param, name, seed, residual_std if residual else self.config.init_std)

    def hidden(self, ids_BT: Tensor, ac: str = "none") -> Tensor:
        """Normalised output of the last block [B, T, D]."""
        assert ac in self.recomputation, ac
        T = ids_BT.shape[1]
        assert self.config.rope_max_seq_len >= T, f"row of {T} tokens, the model takes {self.config}"
        cos, sin = self.cos[:T], self.sin[:T]
        x_BTD: Tensor = self.embedding(ids_BT)
        for block in self.blocks:
            if ac == "full" and torch.is_grad_enabled():
                x_BTD = recomputed(block, x_BTD, cos, sin)
            else:
                x_BTD = block(x_BTD, cos, sin)
        out: Tensor = self.norm(x_BTD)
        return out

    def logits(self, ids: Tensor) -> Tensor:
        """Scores of the next token [B, T, V]."""
        return F.linear(self.hidden(ids), self.embedding.weight)

    def init_state(self, rows: int) -> list[KeysValues]:
        """Keys and values of no token, by layer."""
        head_dim = self.config.width // self.config.heads
        like = self.embedding.weight
        return [no_past(rows, self.config.heads, head_dim, like) for _ in self.blocks]

    def advance(self, ids: Tensor, state: list[KeysValues]) -> tuple[Tensor, list[KeysValues]]:
        """Scores [B, T, V] of the next T tokens, and the keys and values with theirs."""
        start = state[0][0].shape[-2]
        end = start + ids.shape[1]
        assert end <= self.config.rope_max_seq_len, f"row of {end} tokens, the model takes {self.config}"
        cos, sin = self.cos[start:end], self.sin[start:end]
        x_BTD: Tensor = self.embedding(ids)
        after = []
        for block, past in zip(self.blocks, state, strict=True):
            assert isinstance(block, Block)
            x_BTD, past = block.advance(x_BTD, cos, sin, past)
            after.append(past)
        return F.linear(self.norm(x_BTD), self.embedding.weight), after

    def loss(self, ids: Tensor, targets: Tensor, ac: str = "none") -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the targets other than -100, and their number; ids, targets [B, T]."""
        return head_loss(self.hidden(ids, ac), self.embedding.weight, targets)

    def param_groups(self) -> list[ParamGroup]:
        """embed and proj decay, norm does not."""
        named = list(self.named_parameters())
        embed = [(n, p) for n, p in named if n == "embedding.weight"]
        proj = [(n, p) for n, p in named if p.ndim >= 2 and n != "embedding.weight"]
        norm = [(n, p) for n, p in named if p.ndim < 2]
        return [
            ParamGroup(name="embed", decay=True, lr_mult=1.0, params=embed),
            ParamGroup(name="proj", decay=True, lr_mult=1.0, params=proj),
            ParamGroup(name="norm", decay=False, lr_mult=1.0, params=norm),
        ]

    def layer_label(self, name: str) -> str:
        """layerNN, else embedding or norm."""
        first, *rest = name.split(".")
        return f"layer{int(rest[0]):02d}" if first == "blocks" else first

    def flops_per_token(self, T: int) -> float:
        """6 x matrix parameters (the head, not the embedding's lookup) + causal attention 6 layers D T.

        Engine design, section 3: no credit for recomputation, half of T x T for the causal mask.
        """
        matrices = sum(param.numel() for param in self.parameters() if param.ndim >= 2)
        return 6.0 * matrices + 6.0 * self.config.layers * self.config.width * T


def build(config: Mapping[str, Any], vocab_size: int, seed: int, dtype: torch.dtype) -> Llama:
    """Builds and initialises a Llama; under torch.device("meta") only its shapes."""
    return Llama(LlamaConfig.read(config), vocab_size, seed, dtype)
