"""The scan by chunks of Q tokens on batched matrix products: for every device without a kernel.

With cum the running sum of A dt inside a chunk, w = dt u and V the potentials before the chunk:

    y_i = sum_{j <= i} (r_i . b_j) exp(cum_i - cum_j) w_j + exp(cum_i) V r_i
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
    """What both passes make of the inputs of a block of c chunks and R rows; n = c R H, m = c R G."""

    steps: Tensor
    """dt [c, R, H, Q]."""
    w: Tensor
    """dt u [n, Q, P]."""
    b: Tensor
    """[m, Q, N]."""
    r: Tensor
    """[m, Q, N]."""
    products: Tensor
    """r_i . b_j where j <= i, 0 elsewhere [m, Q, Q]."""
    between: Tensor
    """exp(cum_i - cum_j) where j <= i, 1 elsewhere [c, R, H, Q, Q]."""
    until: Tensor
    """exp(cum_i) [c, R, H, Q, 1]."""
    beyond: Tensor
    """exp(cum_Q - cum_j) [c, R, H, Q, 1]."""
    whole: tuple[Tensor, ...]
    """exp(cum_Q) [R, H, 1, 1] of each chunk."""
    weights: Tensor
    """What y takes of w: the products times `between` [n, Q, Q]."""
    writes: Tensor
    """What the chunk's end takes of w: b times `beyond` [n, Q, N]."""
    reads: Tensor
    """What y takes of the potentials before the chunk: r times `until` [n, Q, N]."""


def _by_head(by_group: Tensor, by_head: Tensor) -> Tensor:
    """The product of [m, Q, .] and [c, R, H, Q, .], which spreads the first over the heads of its group."""
    c, R, H, Q, _ = by_head.shape
    G = by_group.shape[0] // (c * R)
    out = by_head.view(c * R * G, H // G, Q, -1) * by_group[:, None]
    return out.view(c * R * H, Q, -1)


def _pieces(s: Shape, block: Block, ones: Tensor, inputs: tuple[Tensor, ...], A: Tensor) -> _Pieces:
    u, steps, b, r = (block.of(x) for x in inputs)
    outer, Q = steps.shape[:3], s.Q
    steps = steps.contiguous()
    decays = torch.mm((steps * A[:, None]).view(-1, Q), ones).exp_().view(*outer, -1)
    between = decays[..., : Q * Q].view(*outer, Q, Q)
    until, beyond = decays[..., Q * Q : -Q, None], decays[..., -Q:, None]
    b, r = (x.to(decays.dtype).reshape(-1, Q, s.N) for x in (b, r))
    products = torch.bmm(r, b.transpose(1, 2)).tril_()
    return _Pieces(
        steps=steps,
        w=torch.mul(u, steps[..., None], out=decays.new_empty(u.shape)).view(-1, Q, s.P),
        b=b,
        r=r,
        products=products,
        between=between,
        until=until,
        beyond=beyond,
        whole=until[..., -1:, :].unbind(),
        weights=_by_head(products, between),
        writes=_by_head(b, beyond),
        reads=_by_head(r, until),
    )


def forward(
    s: Shape, u: Tensor, dt: Tensor, A: Tensor, b: Tensor, r: Tensor, state: Tensor | None
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
            _forward_block(s, _pieces(s, block, ones, inputs, A), V, block.of(y))
        last[rows] = V_rows[-1].transpose(-1, -2)
    return s.cut(y), last, V_all


def _forward_block(s: Shape, p: _Pieces, V: Tensor, y: Tensor) -> None:
    """Fills y and V [c + 1, R, H, N, P], whose first is there."""
    torch.bmm(p.writes.transpose(1, 2), p.w, out=V[1:].view(-1, s.N, s.P))
    each = V.unbind()
    for c, whole in enumerate(p.whole):
        each[c + 1].addcmul_(whole, each[c])
    out = torch.bmm(p.weights, p.w).baddbmm_(p.reads, V[:-1].view(-1, s.N, s.P))
    y.copy_(out.view(y.shape))


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
    V_all: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, A, b, r and of the potentials before the first token [B, H, P, N]."""
    inputs, g = tuple(s.fill(x) for x in (u, dt, b, r)), s.fill(g)
    ones, (d_u, d_dt, d_b, d_r), d_A = (
        spans(s.Q, dt),
        (s.empty(x) for x in (u, dt, b, r)),
        torch.zeros_like(A),
    )
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
            out = _Gradients(u=block.of(d_u), dt=block.of(d_dt), b=block.of(d_b), r=block.of(d_r), A=d_A)
            _backward_block(s, p, ones, A, block.of(inputs[0]), block.of(g), V, d_V, out)
            d_after = d_V[0]
        d_state[rows] = d_after.transpose(-1, -2)
    return s.cut(d_u), s.cut(d_dt), d_A, s.cut(d_b), s.cut(d_r), d_state


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
    Q, outer = s.Q, p.steps.shape[:3]
    g = g.to(p.w.dtype).reshape(p.w.shape)
    torch.bmm(p.reads.transpose(1, 2), g, out=d_V[:-1].view(-1, s.N, s.P))
    each = d_V.unbind()
    for c in reversed(range(len(p.whole))):
        each[c].addcmul_(p.whole[c], each[c + 1])
    V_before, d_V_after = V[:-1].view(-1, s.N, s.P), d_V[1:].view(-1, s.N, s.P)

    d_exponents = p.w.new_empty(*outer, Q * Q + 2 * Q)
    d_r = _spread(p.r, torch.bmm(g, V_before.transpose(1, 2)), p.until, d_exponents[..., Q * Q : -Q])
    d_b = _spread(p.b, torch.bmm(p.w, d_V_after.transpose(1, 2)), p.beyond, d_exponents[..., -Q:])
    d_weights = torch.bmm(g, p.w.transpose(1, 2)).view(p.between.shape).mul_(p.between)
    d_weights = d_weights.view(-1, s.H // s.G, Q, Q)
    torch.mul(
        d_weights,
        p.products[:, None],
        out=d_exponents[..., : Q * Q].view(d_weights.shape),
    )
    d_products = d_weights.sum(1).tril_()
    out.r.copy_(d_r.baddbmm_(d_products, p.b).view(out.r.shape))
    out.b.copy_(d_b.baddbmm_(d_products.transpose(1, 2), p.r).view(out.b.shape))

    kept = torch.mul(V[:-1], d_V[1:]).flatten(3).sum(-1).mul_(torch.stack(p.whole)[..., 0, 0])
    d_log = torch.mm(d_exponents.view(-1, Q * Q + 2 * Q), ones.t()).view(p.steps.shape).add_(kept[..., None])
    out.A.add_((d_log * p.steps).sum(-1).sum((0, 1)))
    d_w = torch.bmm(p.weights.transpose(1, 2), g).baddbmm_(p.writes, d_V_after).view(u.shape)
    out.dt.copy_(torch.mul(d_w, u).sum(-1).addcmul_(d_log, A[:, None]))
    torch.mul(d_w, p.steps[..., None], out=out.u)


def _spread(by_group: Tensor, d_product: Tensor, by_head: Tensor, d_exponents: Tensor) -> Tensor:
    """Gradients of `_by_head(by_group, by_head)`: of the first factor, and of the exponent of the second."""
    d = d_product.view(*by_head.shape[:4], -1).mul_(by_head)
    d = d.view(by_group.shape[0], -1, *by_group.shape[1:])
    d_exponents.copy_((d * by_group[:, None]).sum(-1).view(d_exponents.shape))
    return d.sum(1)
