"""The scan by chunks of Q tokens on batched matrix products: for every device without a kernel.

With cum the running sum of A dt inside a chunk, w = dt u and V the potentials before the chunk:

    y_i = sum_{j <= i} (r_i . b_j) exp(cum_i - cum_j) w_j + exp(cum_i) V r_i + skip u_i
    V'  = exp(cum_Q) V + sum_j exp(cum_Q - cum_j) w_j b_j^T

Every exponent is a sum over its own span of tokens, made by one product with a matrix of ones and zeros: not
a difference of long sums, so nothing cancels and nothing overflows. The transpose of that product gives the
gradient of A dt, and there too nothing cancels. The backward pass gets the inputs and the potentials around
chunks and makes the rest again. Everything runs in a fixed order without atomics: two runs give equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer_core.kernels.scan.layout import Block, Shape, blocks, potentials, row_blocks
from trainer_core.kernels.target import target


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
    w: Tensor
    """dt u [n, Q, P]."""
    r_b: Tensor
    """r and b [2, m, 1, Q, N]."""
    products: Tensor
    """r_i . b_j where j <= i, 0 elsewhere [m, 1, Q * Q]."""
    between: Tensor
    """exp(cum_i - cum_j) where j <= i, 1 elsewhere [m, k, Q * Q]."""
    outside: Tensor
    """exp(cum_i) and exp(cum_Q - cum_j) [2, m, k, Q, 1]."""
    whole: Tensor
    """exp(cum_Q) of each chunk [c, R, H, 1, 1]."""
    weights: Tensor
    """What y takes of w: the products times `between` [n, Q, Q]."""
    reads: Tensor
    """What y takes of the potentials before the chunk: r times exp(cum_i) [n, Q, N]."""
    writes: Tensor
    """What the chunk's end takes of w: b times exp(cum_Q - cum_j) [n, Q, N]."""


def _pieces(s: Shape, block: Block, ones: Tensor, inputs: tuple[Tensor, ...], A: Tensor) -> _Pieces:
    u, steps, b, r = (block.of(x) for x in inputs)
    c, R, H, Q = steps.shape
    m, k = c * R * s.G, H // s.G
    steps = steps.contiguous()
    decays = torch.mm((steps * A[:, None]).view(-1, Q), ones).exp_().view(m, k, -1)
    between, outside = decays[..., : Q * Q], decays[..., Q * Q :]
    outside = outside.view(m, k, 2, Q, 1).movedim(2, 0)
    r_b = decays.new_empty(2, *r.shape)
    r_b[0].copy_(r)
    r_b[1].copy_(b)
    r_b = r_b.view(2, m, 1, Q, s.N)
    products = torch.bmm(r_b[0, :, 0], r_b[1, :, 0].transpose(1, 2)).tril_().view(m, 1, Q * Q)
    ends = torch.mul(outside, r_b, out=decays.new_empty(2, m, k, Q, s.N)).view(2, -1, Q, s.N)
    weights = torch.mul(between, products, out=decays.new_empty(m, k, Q * Q))
    return _Pieces(
        steps=steps,
        w=torch.mul(u, steps[..., None], out=decays.new_empty(u.shape)).view(-1, Q, s.P),
        r_b=r_b,
        products=products,
        between=between,
        outside=outside,
        whole=decays[..., Q * Q + Q - 1].view(c, R, H, 1, 1),
        weights=weights.view(-1, Q, Q),
        reads=ends[0],
        writes=ends[1],
    )


def forward(
    s: Shape,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    skip: Tensor | None,
    state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y [B, T, H, P], the last potentials [B, H, P, N], the potentials around all chunks [num_potentials]."""
    inputs = tuple(s.fill(x) for x in (u, dt, b, r))
    ones, y = spans(s.Q, dt), s.empty(u)
    V_all, last = dt.new_empty(s.num_potentials), dt.new_empty(s.B, s.H, s.P, s.N)
    for rows in row_blocks(s, target(u)):
        V_rows = potentials(s, V_all, rows)
        _put(V_rows[0], state, rows)
        for block in blocks(s, rows, target(u)):
            V = V_rows[block.chunks.start : block.chunks.stop + 1]
            out = _forward_block(s, _pieces(s, block, ones, inputs, A), V)
            if skip is not None:
                out.addcmul_(block.of(inputs[0]), skip[:, None, None])
            block.of(y).copy_(out)
        last[rows] = V_rows[-1].transpose(-1, -2)
    return s.cut(y), last, V_all


def _forward_block(s: Shape, p: _Pieces, V: Tensor) -> Tensor:
    """Fills V [c + 1, R, H, N, P], whose first is there; y without what skips [c, R, H, Q, P]."""
    torch.bmm(p.writes.transpose(1, 2), p.w, out=V[1:].view(-1, s.N, s.P))
    for before, after, whole in zip(V[:-1].unbind(), V[1:].unbind(), p.whole.unbind(), strict=True):
        after.addcmul_(whole, before)
    y = torch.bmm(p.weights, p.w).baddbmm_(p.reads, V[:-1].view(-1, s.N, s.P))
    return y.view(*p.steps.shape, s.P)


def _put(V: Tensor, state: Tensor | None, rows: slice) -> None:
    """V [R, H, N, P] from a state [B, H, P, N]."""
    if state is None:
        V.zero_()
    else:
        V.copy_(state[rows].transpose(-1, -2))


def backward(
    s: Shape,
    g: Tensor,
    g_last: Tensor | None,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    skip: Tensor | None,
    V_all: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, A, b, r, skip and of the potentials before the first token [B, H, P, N]."""
    inputs, g = tuple(s.fill(x) for x in (u, dt, b, r)), s.fill(g)
    ones, d_all = spans(s.Q, dt), tuple(s.empty(x) for x in (u, dt, b, r))
    d_A, d_skip = torch.zeros_like(A), torch.zeros_like(A)
    d_state = V_all.new_empty(s.B, s.H, s.P, s.N)
    for rows in row_blocks(s, target(u)):
        V_rows = potentials(s, V_all, rows)
        d_after = torch.empty_like(V_rows[0])
        _put(d_after, g_last, rows)
        for block in reversed(blocks(s, rows, target(u))):
            p = _pieces(s, block, ones, inputs, A)
            V = V_rows[block.chunks.start : block.chunks.stop + 1]
            d_V = torch.empty_like(V)
            d_V[-1].copy_(d_after)
            u_block, g_block = block.of(inputs[0]), block.of(g)
            d_u, d_dt, d_b, d_r = (block.of(x) for x in d_all)
            out = _Gradients(u=d_u, dt=d_dt, b=d_b, r=d_r, A=d_A)
            _backward_block(s, p, ones, A, u_block, g_block, V, d_V, out)
            if skip is not None:
                d_skip.add_(torch.mul(g_block, u_block).sum(-1, dtype=A.dtype).sum((0, 1, 3)))
                d_u.addcmul_(g_block, skip[:, None, None].to(u.dtype))
            d_after = d_V[0]
        d_state[rows] = d_after.transpose(-1, -2)
    d_u, d_dt, d_b, d_r = (s.cut(x) for x in d_all)
    return d_u, d_dt, d_A, d_b, d_r, d_skip, d_state


@dataclass(frozen=True, kw_only=True)
class _Gradients:
    """Where a block's gradients go."""

    u: Tensor
    """[c, R, H, Q, P]."""
    dt: Tensor
    """[c, R, H, Q]."""
    b: Tensor
    """[c, R, G, Q, N]."""
    r: Tensor
    """[c, R, G, Q, N]."""
    A: Tensor
    """[H], to which each block adds."""


def _backward_block(
    s: Shape,
    p: _Pieces,
    ones: Tensor,
    A: Tensor,
    u: Tensor,
    g: Tensor,
    V: Tensor,
    d_V: Tensor,
    out: _Gradients,
) -> None:
    """Fills all of d_V but its last, which is there, and the gradients."""
    Q, (m, k, _) = s.Q, p.between.shape
    g = p.w.new_empty(g.shape).copy_(g).view(p.w.shape)
    torch.bmm(p.reads.transpose(1, 2), g, out=d_V[:-1].view(-1, s.N, s.P))
    steps_back = zip(d_V[:-1].unbind(), d_V[1:].unbind(), p.whole.unbind(), strict=True)
    for before, after, whole in reversed(list(steps_back)):
        before.addcmul_(whole, after)
    V_before, d_V_after = V[:-1].view(-1, s.N, s.P), d_V[1:].view(-1, s.N, s.P)

    d_exponents = p.w.new_empty(m, k, Q * Q + 2 * Q)
    d_weights = torch.bmm(g, p.w.transpose(1, 2)).view(m, k, Q * Q)
    torch.mul(d_weights, p.weights.view(m, k, -1), out=d_exponents[..., : Q * Q])
    d_products = d_weights.mul_(p.between).sum(1).view(m, Q, Q).tril_()
    d_ends = p.w.new_empty(2, m * k, Q, s.N)
    torch.bmm(g, V_before.transpose(1, 2), out=d_ends[0])
    torch.bmm(p.w, d_V_after.transpose(1, 2), out=d_ends[1])
    d_ends = d_ends.view(2, m, k, Q, s.N).mul_(p.outside)
    d_r, d_b = d_ends.sum(2)
    out.r.copy_(d_r.baddbmm_(d_products, p.r_b[1, :, 0]).view(out.r.shape))
    out.b.copy_(d_b.baddbmm_(d_products.transpose(1, 2), p.r_b[0, :, 0]).view(out.b.shape))
    d_outside = d_exponents[..., Q * Q :].view(m, k, 2, Q).movedim(2, 0)
    d_outside.copy_(_row_sums(d_ends.mul_(p.r_b)))

    kept = torch.mul(V[:-1], d_V[1:]).flatten(3).sum(-1).mul_(p.whole[..., 0, 0])
    d_log = torch.mm(d_exponents.view(m * k, -1), ones.t()).view(p.steps.shape).add_(kept[..., None])
    out.A.add_((d_log * p.steps).sum(-1).sum((0, 1)))
    d_w = torch.bmm(p.weights.transpose(1, 2), g).baddbmm_(p.writes, d_V_after).view(u.shape)
    torch.mul(d_w, p.steps[..., None], out=out.u)
    out.dt.copy_(_row_sums(d_w.mul_(u)).addcmul_(d_log, A[:, None]))


def _row_sums(x: Tensor) -> Tensor:
    """Sums over the last dimension, short here: as a product they take a third less time."""
    return torch.mv(x.view(-1, x.shape[-1]), x.new_ones(x.shape[-1])).view(x.shape[:-1])
