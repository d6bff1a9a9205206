"""The specification of the pool read: an explicit softmax over every event, for tests only.

Never used in training: it holds T x S weights of every head. Autograd makes its gradients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def pool_weights_reference(
    q: Tensor, k: Tensor, clock: Tensor, log_write: Tensor, ids: Tensor, before: Tensor, match: Tensor
) -> Tensor:
    """Weights [B, H, T, S] of S events for the queries q [B, H, T, d], which are the last T events.

    Query head h reads key head h // (H / K). The logit of event s for the query of event t, s <= t, is
    q_t.k_s / sqrt(d) - (clock_t - clock_s) + log_write_s + match_t [before_s == ids_t]. The clock of the
    query is the same for all its events: it moves no weight and gets no gradient.
    """
    (_, H, T, d), (_, K, S, _) = q.shape, k.shape
    keys, writes = (x.repeat_interleave(H // K, 1) for x in (k, log_write))
    passed = clock[:, :, None, :] - clock[:, :, S - T :, None].detach()
    followed = before[:, None, None, :] == ids[:, None, :, None]
    logits = q @ keys.transpose(-1, -2) / math.sqrt(d) + passed + writes[:, :, None, :]
    logits = logits + torch.where(followed, match[..., None], 0)
    future = torch.ones(T, S, dtype=torch.bool, device=q.device).triu(S - T + 1)
    return logits.masked_fill(future, float("-inf")).softmax(-1)


def pool_read_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    clock: Tensor,
    log_write: Tensor,
    ids: Tensor,
    before: Tensor,
    match: Tensor,
) -> Tensor:
    """What the queries read of v [B, K, S, d]: its rows, weighted; [B, H, T, d]."""
    weights = pool_weights_reference(q, k, clock, log_write, ids, before, match)
    return weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
