"""The scan by chunks of Q tokens on batched matrix products: for every device without a kernel.

With cum the running sum of A dt inside a chunk and V the potentials before the chunk:

    y_i = sum_{j <= i} ((r_i . b_j) exp(cum_i - cum_j) dt_j + skip [i = j]) u_j + exp(cum_i) V r_i
    V'  = exp(cum_Q) V + sum_j exp(cum_Q - cum_j) dt_j u_j b_j^T

Steps and skips are part of the small matrices that multiply u, so that no pass over u is theirs.

Every exponent is a sum over its own span of tokens, made by one product with a matrix of ones and zeros: not
a difference of long sums, so nothing cancels and nothing overflows. The transpose of that product gives the
gradient of A dt, and there too nothing cancels. The backward pass gets the inputs and the potentials around
chunks and makes the rest again. Everything runs in a fixed order without atomics: two runs give equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer_core.kernels.scan.layout import Block, Gradients, Inputs, Shape, blocks, potentials, row_blocks


def spans(Q: int, like: Tensor) -> Tensor:
    """Which tokens an exponent sums over: ones and zeros [Q, Q * Q + 2 Q].

    Column (i, j) takes the tokens j < t <= i, then Q columns take t <= i, the last Q columns t > j.
    """
    ones = torch.ones(Q, Q, dtype=like.dtype, device=like.device)
    until, beyond = ones.triu(), ones.tril(-1)
    return torch.cat(((until[:, :, None] * beyond[:, None, :]).view(Q, Q * Q), until, beyond), dim=1)


@dataclass(frozen=True, kw_only=True)
class _Pieces:
    """What both passes make of the inputs of a block of c chunks and R rows.

    m = c R G are its groups, each of k heads, and n = m k.
    """

    steps: Tensor
    """dt [c, R, H, Q]."""
    u: Tensor
    """[n, Q, P]."""
    r_b: Tensor
    """r and b [2, m, 1, Q, N]."""
    between: Tensor
    """exp(cum_i - cum_j) where j <= i, 1 elsewhere [m, k, Q * Q]."""
    outside: Tensor
    """exp(cum_i) and exp(cum_Q - cum_j) [2, m, k, Q, 1]."""
    whole: Tensor
    """exp(cum_Q) of each chunk [c, R, H, 1, 1]."""
    factors: Tensor
    """exp(cum_i) and exp(cum_Q - cum_j) dt_j [2, m, k, Q, 1]."""
    decayed: Tensor
    """r_i . b_j times `between` where j <= i, 0 elsewhere [m, k, Q * Q]."""
    weights: Tensor
    """What y takes of u: `decayed` times dt_j, on the diagonal the skip in addition [n, Q, Q]."""
    reads: Tensor
    """What y takes of the potentials before the chunk: r times exp(cum_i) [n, Q, N]."""
    writes: Tensor
    """What the chunk's end takes of u: b times exp(cum_Q - cum_j) dt_j [n, Q, N]."""


def _pieces(s: Shape, block: Block, ones: Tensor, x: Inputs) -> _Pieces:
    u, steps, b, r = (block.of(t) for t in (x.u, x.dt, x.b, x.r))
    c, R, H, Q = steps.shape
    m, k = c * R * s.G, H // s.G
    steps = steps.contiguous()
    decays = torch.mm((steps * x.A[:, None]).view(-1, Q), ones).exp_().view(m, k, -1)
    between, outside = decays[..., : Q * Q], decays[..., Q * Q :]
    outside = outside.view(m, k, 2, Q, 1).movedim(2, 0)
    r_b = decays.new_empty(2, *r.shape)
    r_b[0].copy_(r)
    r_b[1].copy_(b)
    r_b = r_b.view(2, m, 1, Q, s.N)
    products = torch.bmm(r_b[0, :, 0], r_b[1, :, 0].transpose(1, 2)).tril_().view(m, 1, Q * Q)
    factors = outside.clone(memory_format=torch.contiguous_format)
    factors[1].mul_(steps.view(m, k, Q, 1))
    ends = torch.mul(factors, r_b, out=decays.new_empty(2, m, k, Q, s.N)).view(2, -1, Q, s.N)
    decayed = torch.mul(between, products, out=decays.new_empty(m, k, Q * Q))
    weights = decayed.view(-1, Q, Q) * steps.view(-1, 1, Q)
    if x.skip is not None:
        _diagonal(weights, H).add_(x.skip[:, None])
    return _Pieces(
        steps=steps,
        u=decays.new_empty(u.shape).copy_(u).view(-1, Q, s.P),
        r_b=r_b,
        between=between,
        outside=outside,
        whole=decays[..., Q * Q + Q - 1].view(c, R, H, 1, 1),
        factors=factors,
        decayed=decayed,
        weights=weights,
        reads=ends[0],
        writes=ends[1],
    )


def _diagonal(x: Tensor, H: int) -> Tensor:
    """Of each matrix of x [n, Q, Q], by head [c R, H, Q]."""
    return x.view(-1, H, *x.shape[1:]).diagonal(dim1=-2, dim2=-1)


def forward(s: Shape, x: Inputs, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """y [B, T, H, P], the last potentials [B, H, P, N], the potentials around all chunks [num_potentials]."""
    filled, ones, y = s.filled(x), spans(s.Q, x.dt), s.empty(x.u)
    V_all, last = x.dt.new_empty(s.num_potentials), x.dt.new_empty(s.B, s.H, s.P, s.N)
    for rows in row_blocks(s, x.u):
        V_rows = potentials(s, V_all, rows)
        _put(V_rows[0], state, rows)
        for block in blocks(s, rows, x.u):
            V = V_rows[block.chunks.start : block.chunks.stop + 1]
            _forward_block(s, _pieces(s, block, ones, filled), V, block.of(y))
        last[rows] = V_rows[-1].transpose(-1, -2)
    return s.cut(y), last, V_all


def _forward_block(s: Shape, p: _Pieces, V: Tensor, y: Tensor) -> None:
    """Fills y and V [c + 1, R, H, N, P], whose first is there."""
    torch.bmm(p.writes.transpose(1, 2), p.u, out=V[1:].view(-1, s.N, s.P))
    for before, after, whole in zip(V[:-1].unbind(), V[1:].unbind(), p.whole.unbind(), strict=True):
        after.addcmul_(whole, before)
    out = torch.bmm(p.weights, p.u).baddbmm_(p.reads, V[:-1].view(-1, s.N, s.P))
    y.copy_(out.view(y.shape))


def _put(V: Tensor, state: Tensor | None, rows: slice) -> None:
    """V [R, H, N, P] from a state [B, H, P, N]."""
    if state is None:
        V.zero_()
    else:
        V.copy_(state[rows].transpose(-1, -2))


def backward(s: Shape, g: Tensor, g_last: Tensor | None, x: Inputs, V_all: Tensor) -> Gradients:
    """Gradients of u, dt, A, b, r, skip (also without one) and of the first potentials [B, H, P, N]."""
    filled, g, ones = s.filled(x), s.fill(g), spans(s.Q, x.dt)
    d_all = tuple(s.empty(t) for t in (x.u, x.dt, x.b, x.r))
    d_A, d_skip = torch.zeros_like(x.A), torch.zeros_like(x.A)
    d_state = V_all.new_empty(s.B, s.H, s.P, s.N)
    for rows in row_blocks(s, x.u):
        V_rows = potentials(s, V_all, rows)
        d_after = torch.empty_like(V_rows[0])
        _put(d_after, g_last, rows)
        for block in reversed(blocks(s, rows, x.u)):
            p = _pieces(s, block, ones, filled)
            V = V_rows[block.chunks.start : block.chunks.stop + 1]
            d_V = torch.empty_like(V)
            d_V[-1].copy_(d_after)
            d_u, d_dt, d_b, d_r = (block.of(d) for d in d_all)
            out = Inputs(u=d_u, dt=d_dt, A=d_A, b=d_b, r=d_r, skip=d_skip)
            _backward_block(s, p, ones, x.A, block.of(g), V, d_V, out)
            d_after = d_V[0]
        d_state[rows] = d_after.transpose(-1, -2)
    d_u, d_dt, d_b, d_r = (s.cut(d) for d in d_all)
    return d_u, d_dt, d_A, d_b, d_r, d_skip, d_state


def _backward_block(
    s: Shape, p: _Pieces, ones: Tensor, A: Tensor, g: Tensor, V: Tensor, d_V: Tensor, out: Inputs
) -> None:
    """Fills all of d_V but its last, which is there, and the gradients; adds to those of A and skip."""
    Q, (m, k, _) = s.Q, p.between.shape
    g = torch.empty_like(p.u).view(g.shape).copy_(g).view(p.u.shape)
    torch.bmm(p.reads.transpose(1, 2), g, out=d_V[:-1].view(-1, s.N, s.P))
    steps_back = zip(d_V[:-1].unbind(), d_V[1:].unbind(), p.whole.unbind(), strict=True)
    for before, after, whole in reversed(list(steps_back)):
        before.addcmul_(whole, after)
    V_before, d_V_after = V[:-1].view(-1, s.N, s.P), d_V[1:].view(-1, s.N, s.P)

    d_exponents = p.u.new_empty(m, k, Q * Q + 2 * Q)
    d_weights = torch.bmm(g, p.u.transpose(1, 2))
    assert out.skip is not None
    out.skip.add_(_diagonal(d_weights, s.H).sum((0, 2)))
    d_weights = d_weights.view(m, k, Q * Q)
    d_steps = (d_weights * p.decayed).view(*p.steps.shape, Q).sum(-2)
    d_weights.view(*p.steps.shape, Q).mul_(p.steps[..., None, :])
    torch.mul(d_weights, p.decayed, out=d_exponents[..., : Q * Q])
    d_products = d_weights.mul_(p.between).sum(1).view(m, Q, Q).tril_()
    d_ends = p.u.new_empty(2, m * k, Q, s.N)
    torch.bmm(g, V_before.transpose(1, 2), out=d_ends[0])
    torch.bmm(p.u, d_V_after.transpose(1, 2), out=d_ends[1])
    d_ends = d_ends.view(2, m, k, Q, s.N)
    d_factors = _row_sums(d_ends * p.r_b)
    d_steps.add_((d_factors[1] * p.outside[1, ..., 0]).view(d_steps.shape))
    d_exponents[..., Q * Q :].view(m, k, 2, Q).movedim(2, 0).copy_(d_factors.mul_(p.factors[..., 0]))
    d_r, d_b = d_ends.mul_(p.factors).sum(2)
    out.r.copy_(d_r.baddbmm_(d_products, p.r_b[1, :, 0]).view(out.r.shape))
    out.b.copy_(d_b.baddbmm_(d_products.transpose(1, 2), p.r_b[0, :, 0]).view(out.b.shape))

    kept = torch.mul(V[:-1], d_V[1:]).flatten(3).sum(-1).mul_(p.whole[..., 0, 0])
    d_log = torch.mm(d_exponents.view(m * k, -1), ones.t()).view(p.steps.shape).add_(kept[..., None])
    out.A.add_((d_log * p.steps).sum(-1).sum((0, 1)))
    out.dt.copy_(d_steps.addcmul_(d_log, A[:, None]))
    d_u = torch.bmm(p.weights.transpose(1, 2), g).baddbmm_(p.writes, d_V_after)
    out.u.copy_(d_u.view(out.u.shape))


def _row_sums(x: Tensor) -> Tensor:
    """Sums over the last dimension, short here: as a product they take a third less time."""
    return torch.mv(x.view(-1, x.shape[-1]), x.new_ones(x.shape[-1])).view(x.shape[:-1])
