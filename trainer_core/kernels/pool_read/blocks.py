"""The pool read by blocks of queries on batched matrix products: for every device without a kernel.

As in causal attention a block of queries meets only the events up to its own end, short rows keep their
weights for the backward pass and long ones recompute them. The query heads that share a key head are rows of
one product, so no key is ever repeated. Everything runs in a fixed order without atomics.

Clocks grow along a row while what matters is their difference: each block subtracts the clock of its first
query, which no later event can change, before anything is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer_core.kernels.target import worth_doing
from trainer_core.kernels.tensors import wide_dtype

BLOCK = 64
"""Queries per block."""


def blocks(T: int, S: int) -> list[tuple[int, int, int]]:
    """Start and end of each block of T queries, the last of S events, and the weights of a head before it."""
    spans, before = [], 0
    for start in range(0, T, BLOCK):
        end = min(start + BLOCK, T)
        spans.append((start, end, before))
        before += (end - start) * (S - T + end)
    return spans


def saved_size(T: int, S: int) -> int:
    """Weights that one head of one row keeps: sum over blocks of queries x events seen."""
    return sum((end - start) * (S - T + end) for start, end, _ in blocks(T, S))


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What the logits are made of, in the dtype they are computed in; R query heads share a key head."""

    q: Tensor
    """[B, K, R, T, d]."""
    k: Tensor
    """[B, K, S, d]."""
    clock: Tensor
    """[B, K, R, S]."""
    log_write: Tensor
    """[B, K, 1, S]."""
    ids: Tensor
    """[B, T, 1], int32: compared in half the time of int64."""
    before: Tensor
    """[B, 1, S], int32."""
    match: Tensor
    """[B, K, R, T, 1]."""

    @property
    def scale(self) -> float:
        """Of the products of queries and keys."""
        return 1 / math.sqrt(self.q.shape[-1])

    @property
    def earlier(self) -> int:
        """Events before the first query."""
        return self.k.shape[2] - self.q.shape[3]

    def queries(self, x: Tensor, start: int, end: int) -> Tensor:
        """One block of x [B, K, R, T, e] as rows of a product, [B K, R (end - start), e]."""
        part = x[:, :, :, start:end]
        return part.reshape(-1, part.shape[2] * part.shape[3], part.shape[4])

    def passed(self, start: int, end: int) -> Tensor:
        """Clocks [B, K, R, end] of the events since the first query of a block."""
        return self.clock[..., :end] - self.clock[..., start : start + 1]

    def followed(self, start: int, end: int) -> Tensor:
        """1 where the event came after the token of the query, else 0: [B, 1, 1, end - start, events]."""
        ids, before = self.ids[:, start:end], self.before[..., : self.earlier + end]
        same = self.q.new_empty(before.shape[0], end - start, before.shape[2])
        return torch.eq(ids, before, out=same)[:, None, None]

    def logits(self, start: int, end: int, followed: Tensor) -> Tensor:
        """Logits [B, K, R, end - start, events] of a block, -inf where the event comes later."""
        first, last = self.earlier + start, self.earlier + end
        events = (self.passed(first, last) + self.log_write[..., :last])[..., None, :]
        logits = torch.addcmul(events, followed, self.match[:, :, :, start:end])
        future = self.q.new_full((end - start, end - start), float("-inf")).triu_(1)
        logits[..., first:].add_(future)
        keys = self.k[:, :, :last].flatten(0, 1).transpose(1, 2)
        rows = logits.view(-1, logits.shape[2] * logits.shape[3], last)
        rows.baddbmm_(self.queries(self.q, start, end), keys, alpha=self.scale)
        return logits

    def own(self, start: int, end: int) -> Tensor:
        """Clocks [B, K, R, end - start, 1] of the queries since the first one of a block."""
        first, last = self.earlier + start, self.earlier + end
        return self.passed(first, last)[..., first:, None]


def pool(
    q: Tensor, k: Tensor, clock: Tensor, log_write: Tensor, ids: Tensor, before: Tensor, match: Tensor
) -> Pool:
    """The parts in the shapes of Pool, widened to at least float32."""
    (B, H, T, d), (_, K, S, _) = q.shape, k.shape
    wide = wide_dtype(q, clock)
    return Pool(
        q=q.to(wide).reshape(B, K, H // K, T, d),
        k=k.to(wide).contiguous(),
        clock=clock.to(wide).reshape(B, K, H // K, S).contiguous(),
        log_write=log_write.to(wide)[:, :, None].contiguous(),
        ids=ids.to(torch.int32)[..., None],
        before=before.to(torch.int32)[:, None],
        match=match.to(wide).reshape(B, K, H // K, T, 1).contiguous(),
    )


def forward(p: Pool, v: Tensor, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, K, R, T, d]; log-sum-exp [B, K, R, T] and no weights, or with `save` the reverse.

    The log-sum-exp is that of the logits as the query's own clock sees them.
    """
    B, K, R, T, _ = p.q.shape
    out, lse = torch.empty_like(p.q), p.q.new_empty(B, K, R, 0 if save else T)
    saved = p.q.new_empty(B * K * R * saved_size(T, p.k.shape[2]) if save else 0)
    for start, end, before in worth_doing(blocks(T, p.k.shape[2]), v):
        logits = p.logits(start, end, p.followed(start, end))
        if save:
            weights = saved[B * K * R * before :][: logits.numel()].view(logits.shape)
            torch.softmax(logits, -1, out=weights)
        else:
            total = torch.logsumexp(logits, -1, keepdim=True)
            lse[..., start:end] = (total - p.own(start, end))[..., 0]
            weights = logits.sub_(total).exp_()
        read = torch.bmm(weights.view(B * K, -1, logits.shape[-1]), v[:, :, : logits.shape[-1]].flatten(0, 1))
        out[:, :, :, start:end] = read.view(B, K, R, end - start, -1)
    return out, lse, saved


def weights(p: Pool) -> Tensor:
    """The weights [B, K, R, T, S] themselves; beside them a block of logits is all that is held."""
    made = p.q.new_zeros(*p.q.shape[:4], p.k.shape[2])
    for start, end, _ in blocks(p.q.shape[3], p.k.shape[2]):
        logits = p.logits(start, end, p.followed(start, end))
        made[:, :, :, start:end, : p.earlier + end] = torch.softmax(logits, -1)
    return made


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Of everything the output depends on."""

    q: Tensor
    """[B, K, R, T, d]."""
    k: Tensor
    """[B, K, S, d]."""
    v: Tensor
    """[B, K, S, d]."""
    clock: Tensor
    """[B, K, R, S]: the key side, the other one has none."""
    match: Tensor
    """[B, K, R, T]."""


def backward(p: Pool, v: Tensor, grad: Tensor, lse: Tensor, saved: Tensor) -> Gradients:
    """The gradients; those of events add up over the blocks of queries in their order."""
    B, K, R, T, d = p.q.shape
    S = p.k.shape[2]
    made = Gradients(
        q=torch.empty_like(p.q),
        k=torch.zeros_like(p.k),
        v=torch.zeros_like(p.k),
        clock=torch.zeros_like(p.clock),
        match=p.q.new_empty(B, K, R, T),
    )
    dk, dv = made.k.view(B * K, S, d), made.v.view(B * K, S, d)
    for start, end, before in worth_doing(blocks(T, S), v):
        last = p.earlier + end
        shape = (B, K, R, end - start, last)
        followed = p.followed(start, end)
        if saved.numel():
            weights = saved[B * K * R * before :][: math.prod(shape)].view(shape)
        else:
            total = lse[:, :, :, start:end, None] + p.own(start, end)
            weights = p.logits(start, end, followed).sub_(total).exp_()
        g = p.queries(grad, start, end)
        keys, values = (x[:, :, :last].flatten(0, 1) for x in (p.k, v))
        dv[:, :last] += torch.bmm(weights.view(B * K, -1, last).transpose(1, 2), g)
        d_rows = torch.bmm(g, values.transpose(1, 2))
        d_logits = d_rows.view(shape)
        torch.ops.aten._softmax_backward_data.out(d_logits, weights, -1, weights.dtype, grad_input=d_logits)
        made.q[:, :, :, start:end] = torch.bmm(d_rows, keys).view(B, K, R, end - start, d)
        dk[:, :last] += torch.bmm(d_rows.transpose(1, 2), p.queries(p.q, start, end))
        made.clock[..., :last] += d_logits.sum(3)
        torch.sum(d_logits.mul_(followed), -1, out=made.match[..., start:end])
    made.q.mul_(p.scale)
    made.k.mul_(p.scale)
    return made
