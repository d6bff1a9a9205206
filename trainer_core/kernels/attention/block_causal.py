"""Causal attention by blocks of queries on batched matrix products: for every device without a kernel.

A block of queries meets only the keys up to its own end: about half of the T x T products are never made.
Short rows keep their probabilities for the backward pass, long ones recompute them from the log-sum-exp.
Probabilities may be dropped: block i of queries is dropped as a tensor [N, queries, keys] of its own at site
`site + i`, once more in the backward pass; no mask is kept.
Everything runs in a fixed order without atomics: two runs give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trainer_core.kernels.dropout import dropout
from trainer_core.kernels.target import worth_doing

BLOCK = 128
"""Queries per block."""


Drop = Callable[[Tensor, int], Tensor]
"""Drops elements of block i of queries; the same ones whenever it is called."""


def keep_all(x: Tensor, block: int) -> Tensor:
    """Drops nothing."""
    return x


def dropping(counter: Tensor | None, site: int, p: float) -> Drop:
    """Drops by a counter; nothing without one."""
    if counter is None or p == 0:
        return keep_all
    return lambda x, block: dropout(x, counter, site + block, p)


class Span(NamedTuple):
    """A block of queries; the last one of a row may be short."""

    number: int
    """Which block."""
    start: int
    """First query."""
    end: int
    """Query after the last, and number of keys seen."""
    before: int
    """Probabilities of one head in the blocks before."""

    @property
    def size(self) -> int:
        """Probabilities of one head: queries x keys seen."""
        return (self.end - self.start) * self.end


def blocks(T: int) -> list[Span]:
    """All blocks of T queries."""
    spans: list[Span] = []
    for number, start in enumerate(range(0, T, BLOCK)):
        before = spans[-1].before + spans[-1].size if spans else 0
        spans.append(Span(number, start, min(start + BLOCK, T), before))
    return spans


def saved_size(T: int) -> int:
    """Probabilities that one head of one row keeps."""
    return sum(span.size for span in blocks(T))


def _scores(q: Tensor, k: Tensor, start: int, end: int) -> Tensor:
    """Scaled scores [N, end - start, end] of one block of queries, -inf where the key comes later."""
    mask = torch.full((end - start, end), float("-inf"), dtype=q.dtype, device=q.device).triu_(start + 1)
    keys = k[:, :end].transpose(1, 2)
    return torch.baddbmm(mask, q[:, start:end], keys, alpha=1 / math.sqrt(q.shape[-1]))


def forward(
    q: Tensor, k: Tensor, v: Tensor, save: bool, drop: Drop = keep_all
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [N, T, d]; log-sum-exp [N, T] and no probabilities, or with `save` the reverse; N = B x H."""
    N, T, _ = q.shape
    out, lse = torch.empty_like(q), q.new_empty(N, 0 if save else T)
    saved = q.new_empty(N * saved_size(T) if save else 0)
    for span in worth_doing(blocks(T), q):
        block, start, end, before = span
        scores = _scores(q, k, start, end)
        if save:
            probs = saved[N * before : N * (before + span.size)].view(scores.shape)
            torch.softmax(scores, -1, out=probs)
        else:
            lse[:, start:end] = torch.logsumexp(scores, -1)
            probs = scores.sub_(lse[:, start:end, None]).exp_()
        out[:, start:end] = torch.bmm(drop(probs, block), v[:, :end])
    return out, lse, saved


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    saved: Tensor,
    drop: Drop = keep_all,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v; key and value gradients add up over the blocks of queries in their order.

    With D the dropped probabilities, sum_s dP P = sum_s dD D = grad . out, so `delta` is that of no dropout.
    """
    N, T, d = q.shape
    scale = 1 / math.sqrt(d)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    delta = (grad * out).sum(-1, keepdim=True)
    for span in worth_doing(blocks(T), q):
        block, start, end, before = span
        if saved.numel():
            probs = saved[N * before : N * (before + span.size)].view(N, end - start, end)
        else:
            probs = _scores(q, k, start, end).sub_(lse[:, start:end, None]).exp_()
        g = grad[:, start:end]
        dv[:, :end].baddbmm_(drop(probs, block).transpose(1, 2), g)
        d_probs = drop(torch.bmm(g, v[:, :end].transpose(1, 2)), block)
        d_scores = d_probs.sub_(delta[:, start:end]).mul_(probs)
        dq[:, start:end] = torch.bmm(d_scores, k[:, :end]).mul_(scale)
        dk[:, :end].baddbmm_(d_scores.transpose(1, 2), q[:, start:end], alpha=scale)
    return dq, dk, dv
