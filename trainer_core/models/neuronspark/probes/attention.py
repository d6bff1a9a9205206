"""Where pool reads look: their weights by distance, and how sharp they are.

Weights a(t, s) of the last train_length queries of a row, made again from what the layer noted, as the
operator defines them. Those of a part of the queries are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from trainer_core.kernels.pool_read import pool_weights
from trainer_core.models.neuronspark.probes.sums import Notes, Sums, Values, like, spread, total
from trainer_core.models.neuronspark.probes.tokens import Tokens

HELD = 1 << 24
"""Weights in memory at a time."""


def weights(notes: Notes, tokens: Tokens, held: int = HELD) -> Iterator[tuple[int, Tensor]]:
    """Parts of the queries: the first of them, and weights [B, H, queries, events up to their end]."""
    q, k, clock, log_write, match = (notes[n] for n in ("q", "k", "clock", "log_write", "match"))
    ids, before = tokens.ids, tokens.before
    B, H, T, _ = q.shape
    step = max(1, held // (B * H * T))
    for a in range(max(0, T - tokens.train_length), T, step):
        b = min(a + step, T)
        pool = k[:, :, :b], clock[..., :b], log_write[..., :b], ids[:, a:b], before[:, :b]
        yield a, pool_weights(q[:, :, a:b], *pool, match[..., a:b])


def by_distance(w: Tensor, first: int) -> Tensor:
    """Sum over rows and queries of the weight `j` events back, [events, H]; w [B, H, queries, events].

    Query i is event first + i. Its events later than itself weigh 0, and round the end of the row they follow
    the distances that lie before its start: a turn of each row, in which no sum changes its order.
    """
    queries, events = w.shape[-2:]
    at = torch.arange(first, first + queries, device=w.device)[:, None]
    event = (at - torch.arange(events, device=w.device)).remainder(events)
    return total(w.gather(-1, event.expand_as(w)), (0, 2)).t()


def bins(profile: Tensor) -> Tensor:
    """[bins, H] of a profile [events, H]: distance 0, then 2^(k-1) .. 2^k - 1 for k = 1, 2, ..."""
    edges = [0, *(1 << k for k in range((len(profile) - 1).bit_length())), len(profile)]
    return torch.stack([profile[a:b].sum(0) for a, b in pairwise(edges)])


def gather(notes: Notes, tokens: Tokens, held: int = HELD) -> Sums:
    """Sums over queries of each query head: weight by bin [bins, H], beyond the training's row length, the
    mean of log2(1 + distance), entropy, [H] each; `queries` counts them. Nothing in passes without attention.
    """
    if not tokens.attention:
        return {}
    B, H, T, _ = notes["q"].shape
    profile = torch.zeros(T, H, dtype=torch.float64, device=notes["q"].device)
    entropy = profile.new_zeros(H)
    for first, w in weights(notes, tokens, held):
        profile[: w.shape[-1]] += by_distance(w, first)
        entropy += total(torch.special.entr(w), (0, 2, 3))
    distance = torch.arange(T, dtype=torch.float64, device=profile.device)[:, None]
    return {
        "bins": bins(profile),
        "beyond_train": profile[tokens.train_length :].sum(0),
        "mean_log2": (profile * torch.log2(1 + distance)).sum(0),
        "entropy": entropy,
        "queries": like(entropy, B * min(T, tokens.train_length)),
    }


def heads(sums: Sums) -> Values:
    """Means over queries t of each query head [H]:

    attn_beyond_train   sum of a(t, s) with t - s >= train_length; 0 where no row is longer
    attn_mean_log2      sum of a(t, s) log2(1 + t - s)
    attn_entropy        -sum of a(t, s) ln a(t, s)
    """
    return {f"attn_{n}": sums[n] / sums["queries"] for n in ("beyond_train", "mean_log2", "entropy")}


def values(sums: Sums) -> Values:
    """The above over heads (_p50, _max), and attn_dist_bin<k>, means over queries and heads:

    bin 0 the weight of the query's own event, bin k = 1, 2, ... that of the events 2^(k-1) to 2^k - 1 back.
    """
    shares = sums["bins"].sum(-1) / sums["queries"].sum()
    found = {f"attn_dist_bin{k}": share for k, share in enumerate(shares)}
    for name, each in heads(sums).items():
        found |= spread(name, each, 50)
    return found
