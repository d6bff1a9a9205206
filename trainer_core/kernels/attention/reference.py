"""The specification of causal attention: an explicit softmax over the whole row.

It holds the scores of every query and key of every head. Training uses it where a model asks for it by name,
and decoding for its few queries.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def causal_attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d), no key after the query) v for q [B, H, T, d] and k, v [B, H, S, d].

    The queries are the last T of S events.
    """
    T, S = q.shape[-2], k.shape[-2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    future = torch.ones(T, S, dtype=torch.bool, device=q.device).triu(1 + S - T)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v
