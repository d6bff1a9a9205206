"""Parts that the families share: norms, projections, attention with its past, initialisation by name.

Nothing here draws from a global random generator or depends on the order of construction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trainer_core.kernels.attention import causal_attention, causal_attention_reference
from trainer_core.kernels.cross_entropy import IGNORE_INDEX, linear_cross_entropy
from trainer_core.kernels.embedding import embedding
from trainer_core.kernels.norm import rms_norm


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class LayerNorm(nn.Module):
    """(x - mean) / std * weight + bias over the last axis."""

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Linear(nn.Module):
    """x weight^T without a bias; unlike nn.Linear it draws no initial values."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Embedding(nn.Module):
    """Rows of a table by id; draws no initial values."""

    def __init__(self, vocab_size: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, width, dtype=dtype))

    def forward(self, ids: Tensor) -> Tensor:
        return embedding(ids, self.weight)


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy summed over the targets other than -100, and their number.

    hidden [B, T, D] before the head, weight [V, D], targets [B, T].
    """
    total = linear_cross_entropy(hidden.flatten(0, 1), weight, targets.flatten())
    return total, (targets != IGNORE_INDEX).sum()


KeysValues = tuple[Tensor, Tensor]
"""Keys and values [B, H, S, d] of the tokens that one layer has seen."""


def no_past(rows: int, heads: int, head_dim: int, like: Tensor) -> KeysValues:
    """Keys and values of no token."""
    return like.new_empty(rows, heads, 0, head_dim), like.new_empty(rows, heads, 0, head_dim)


def attend_after(q: Tensor, k: Tensor, v: Tensor, past: KeysValues) -> tuple[Tensor, KeysValues]:
    """Causal attention of t more tokens, q, k, v [B, H, t, d], to past and themselves; the new past."""
    if past[0].shape[-2] == 0:
        return causal_attention(q, k, v), (k, v)
    keys, values = torch.cat((past[0], k), -2), torch.cat((past[1], v), -2)
    return causal_attention_reference(q, keys, values), (keys, values)


def rope_tables(max_len: int, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [max_len, head_dim / 2], computed in float64."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    angles = torch.outer(torch.arange(max_len, dtype=torch.float64), theta**-pairs)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def seeded(name: str, seed: int) -> torch.Generator:
    """A generator of the CPU that depends on the seed and the name of what is drawn."""
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(key[:8], "little") >> 1)


def init_normal(param: Tensor, name: str, seed: int, std: float) -> None:
    """Fills a parameter from N(0, std) by a generator of (seed, name); always drawn in float32 on the CPU."""
    if param.is_meta:
        return
    values = torch.empty(param.shape, dtype=torch.float32, device="cpu")
    values.normal_(0, std, generator=seeded(name, seed))
    with torch.no_grad():
        param.copy_(values)


def recomputed(block: Callable[..., Tensor], x: Tensor, *rest: Tensor | None) -> Tensor:
    """Runs a block that keeps only its inputs and is run again in the backward pass, bit for bit."""
    out = checkpoint(block, x, *rest, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(out, Tensor)
    return out
