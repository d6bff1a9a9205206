"""The specification of causal attention: an explicit softmax over the whole row, for tests only.

Never used in training: it holds T x T scores of every head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def causal_attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d), s <= t) v for q, k, v of shape [B, H, T, d]."""
    T, d = q.shape[-2:]
    scores = q @ k.transpose(-1, -2) / math.sqrt(d)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v
