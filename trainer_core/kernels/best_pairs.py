"""The best pairs of two halves' scores: the slots that a query reads of a table with product keys.

The k best pairs are among the k best of each half; in order of their scores the pair of the i-th and the j-th
is behind i j - 1 others, so that only those with i j <= k can be chosen.

torch finds the best of one short row after the other, which is slow on a CPU. There the best of all rows are
found together, k times the next one: a float64 has room for a float32 and below it for its place, so that one
maximum finds both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trainer_core.kernels.target import target
from trainer_core.kernels.tensors import wide, wide_dtype


def best_pairs(queries: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Scores and slots [heads, k, m] of the k best of n x n pairs for each of m queries, best first.

    queries [heads, 2, m, d], keys [heads, 2, n, d]; a pair's score is the sum of its two products, its slot
    the first key times n plus the second. Of equal scores any may be chosen.
    """
    halves, sub_keys = queries.flatten(0, 1), keys.flatten(0, 1)
    if target(queries) != "cpu" or wide_dtype(queries) != torch.float32:
        products = torch.bmm(halves, sub_keys.transpose(1, 2))
        return best_pairs_by_topk(wide(products).view(*queries.shape[:3], -1), k)
    products = torch.bmm(sub_keys, halves.transpose(1, 2))
    scores = wide(products).view(*keys.shape[:3], -1)
    chosen, slots = _BestPairs.apply(scores, k)  # type: ignore[no-untyped-call]
    return chosen, slots


def best_pairs_by_topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same from scores [heads, 2, m, n], by torch's own search, differentiated by autograd."""
    best, at = scores.topk(k, dim=-1)
    pairs = (best[:, 0, :, :, None] + best[:, 1, :, None, :]).flatten(2)
    chosen, pair = pairs.topk(k, dim=-1)
    first = at[:, 0].gather(-1, pair.div(k, rounding_mode="floor"))
    second = at[:, 1].gather(-1, pair.remainder(k))
    slots = first * scores.shape[-1] + second
    return chosen.transpose(1, 2), slots.transpose(1, 2)


class _BestPairs(torch.autograd.Function):
    """Of float32 scores [heads, 2, n, m]."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        best, at = _best(scores, k)
        ranks = _able(k, scores)
        first, second = (best[:, half].index_select(1, rank) for half, rank in enumerate(ranks))
        chosen, pair = _best(first + second, k)
        sub_keys = (at[:, half].index_select(1, rank) for half, rank in enumerate(ranks))
        picked = torch.stack([keys.gather(1, pair) for keys in sub_keys], dim=1)
        slots = picked[:, 0] * scores.shape[2] + picked[:, 1]
        ctx.save_for_backward(picked)
        ctx.keys = scores.shape[2]
        ctx.mark_non_differentiable(slots)
        return chosen, slots

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (picked,) = ctx.saved_tensors
        heads, _, k, m = picked.shape
        d_scores = grad.new_zeros(heads, 2, ctx.keys, m)
        return d_scores.scatter_add_(2, picked, grad[:, None].expand(heads, 2, k, m)), None


def _able(k: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The ranks, from 0, of both halves of the pairs that can be among the k best."""
    counts = [k // (i + 1) for i in range(k)]
    of_second = [torch.arange(count, device=like.device) for count in counts]
    of_first = [torch.full_like(ranks, i) for i, ranks in enumerate(of_second)]
    return torch.cat(of_first), torch.cat(of_second)


def _best(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest and where they are [..., k, m], largest first, of float32 x [..., n, m].

    Where there is a NaN the places mean nothing, but are places.
    """
    n = x.shape[-2]
    room = (1 << (n - 1).bit_length()) - 1
    left = x.double()
    left.view(torch.int64).bitwise_or_(torch.arange(n, device=x.device)[:, None])
    found = left.new_empty(*x.shape[:-2], k, x.shape[-1])
    at = found.new_empty(found.shape, dtype=torch.int64)
    for rank, place in zip(torch.split(found, 1, dim=-2), torch.split(at, 1, dim=-2), strict=True):
        torch.amax(left, -2, keepdim=True, out=rank)
        torch.bitwise_and(rank.view(torch.int64), room, out=place)
        left.scatter_(-2, place.clamp_(max=n - 1), float("-inf"))
    return found.to(x.dtype), at
