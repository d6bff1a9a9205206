"""The specification of causal attention: an explicit softmax over the whole row.

It holds the scores of every query and key of every head. Training uses it where a model asks for it by name,
and decoding for its few queries.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from trainer_core.kernels.attention.block_causal import blocks
from trainer_core.kernels.dropout import dropout


def causal_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, counter: Tensor | None = None, site: int = 0, p: float = 0.0
) -> Tensor:
    """softmax(q k^T / sqrt(d), no key after the query) v for q [B, H, T, d] and k, v [B, H, S, d].

    The queries are the last T of S events. With a counter, T = S and the probabilities are dropped with
    probability p, those of BLOCK queries and the keys up to the last of them as a tensor of its own.
    """
    T, S = q.shape[-2], k.shape[-2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    future = torch.ones(T, S, dtype=torch.bool, device=q.device).triu(1 + S - T)
    probs = scores.masked_fill(future, float("-inf")).softmax(-1)
    return (probs if counter is None else _dropped(probs, counter, site, p)) @ v


def _dropped(probs: Tensor, counter: Tensor, site: int, p: float) -> Tensor:
    """Probabilities [B, H, T, T] with elements dropped by blocks of queries."""
    dropped = []
    for block, start, end, _ in blocks(probs.shape[-1]):
        kept = dropout(probs[..., start:end, :end], counter, site + block, p)
        dropped.append(pad(kept, (0, probs.shape[-1] - end)))
    return torch.cat(dropped, -2)
