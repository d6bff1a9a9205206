"""The scan by chunks of Q tokens on batched matrix products: for every device without a kernel.

With cum the running sum of A dt inside a chunk, w = dt u and V the potentials before the chunk:

    y_i  = sum_{j <= i} (r_i . b_j) exp(cum_i - cum_j) w_j  +  exp(cum_i) V r_i
    V'   = exp(cum_Q) V  +  sum_j exp(cum_Q - cum_j) w_j b_j^T

Every exponent is a sum over its own span of tokens, one product with a matrix of ones: no difference of long
sums, so nothing cancels and nothing overflows. Its transpose gives the gradient of A dt. Tensors stand as
[C, B, H, ...] (chunks outside), where the potentials before and after all chunks are each one block.
Everything runs in a fixed order without atomics: two runs give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def spans(Q: int, like: Tensor) -> Tensor:
    """0/1 matrix [Q, Q * Q + 2 Q]: which tokens' A dt an exponent sums.

    Column (i, j) the tokens j < t <= i, the last but one Q columns t <= i, the last Q columns t > j.
    """
    ones = torch.ones(Q, Q, dtype=like.dtype, device=like.device)
    until, after = ones.triu(), ones.tril(-1)
    between = until[:, :, None] * after[:, None, :]
    return torch.cat((between.view(Q, Q * Q), until, after), dim=1)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one call."""

    B: int
    """Rows."""
    T: int
    """Tokens of a row."""
    H: int
    """Heads."""
    P: int
    """Channels of a head."""
    G: int
    """Groups of heads that share b and r."""
    N: int
    """Compartments of a channel."""
    Q: int
    """Tokens of a chunk."""

    @property
    def C(self) -> int:
        """Chunks of a row; the last one may hold tokens that do nothing."""
        return -(-self.T // self.Q)

    @property
    def n(self) -> int:
        """Chunks of all heads of all rows."""
        return self.C * self.B * self.H

    def chunks(self, x: Tensor) -> Tensor:
        """x [B, T, heads, ...] as [C, B, heads, Q, ...], a view where T is a multiple of Q."""
        short = self.C * self.Q - self.T
        if short:
            x = torch.cat((x, x.new_zeros(self.B, short, *x.shape[2:])), dim=1)
        return x.view(self.B, self.C, self.Q, *x.shape[2:]).transpose(2, 3).transpose(0, 1)

    def tokens(self, x: Tensor) -> Tensor:
        """The reverse of `chunks`, into memory of its own."""
        rows = x.transpose(0, 1).transpose(2, 3).reshape(self.B, self.C * self.Q, *x.shape[2:3], *x.shape[4:])
        return rows[:, : self.T].contiguous()


def shape_of(u: Tensor, b: Tensor, Q: int) -> Shape:
    B, T, H, P = u.shape
    return Shape(B=B, T=T, H=H, P=P, G=b.shape[2], N=b.shape[3], Q=Q)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """What both passes make of the inputs."""

    dt: Tensor
    """[C, B, H, Q], contiguous."""
    w: Tensor
    """dt u [C, B, H, Q, P]."""
    between: Tensor
    """exp(cum_i - cum_j) [C, B, H, Q, Q] where j <= i, 1 elsewhere."""
    before: Tensor
    """exp(cum_i) [C, B, H, Q, 1]."""
    after: Tensor
    """exp(cum_Q - cum_j) [C, B, H, Q, 1]."""
    whole: Tensor
    """exp(cum_Q) [C, B, H, 1, 1]."""
    b: Tensor
    """[C, B, G, Q, N]."""
    r: Tensor
    """[C, B, G, Q, N]."""
    products: Tensor
    """r_i . b_j [C, B, G, Q, Q] where j <= i, 0 elsewhere."""


def pieces(s: Shape, u: Tensor, dt: Tensor, A: Tensor, b: Tensor, r: Tensor) -> Pieces:
    wide = torch.promote_types(u.dtype, dt.dtype)
    Q, outer = s.Q, (s.C, s.B, s.H)
    steps = s.chunks(dt).contiguous()
    exponents = torch.mul(steps, A[:, None]).view(s.n, Q)
    decays = torch.mm(exponents, spans(Q, exponents)).exp_().view(*outer, -1)
    b, r = (s.chunks(x).to(wide).contiguous() for x in (b, r))
    flat = (s.C * s.B * s.G, Q, s.N)
    products = torch.bmm(r.view(flat), b.view(flat).transpose(1, 2)).tril_()
    before, after = decays[..., Q * Q : -Q, None], decays[..., -Q:, None]
    return Pieces(
        dt=steps,
        w=torch.mul(s.chunks(u), steps[..., None], out=dt.new_empty(*outer, Q, s.P, dtype=wide)),
        between=decays[..., : Q * Q].unflatten(-1, (Q, Q)),
        before=before,
        after=after,
        whole=before[..., -1:, :],
        b=b,
        r=r,
        products=products.view(s.C, s.B, s.G, Q, Q),
    )


def _by_group(s: Shape, x: Tensor) -> Tensor:
    """[C, B, H, ...] as [C, B, G, H / G, ...]."""
    return x.unflatten(2, (s.G, s.H // s.G))


def _times(s: Shape, by_head: Tensor, by_group: Tensor) -> Tensor:
    """The product of [C, B, H, Q, .] and [C, B, G, Q, .], as [n, Q, .]."""
    product = _by_group(s, by_head) * by_group[:, :, :, None]
    return product.view(s.n, *product.shape[-2:])


def forward(
    s: Shape, u: Tensor, dt: Tensor, A: Tensor, b: Tensor, r: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """y [B, T, H, P], the last potentials [B, H, P, N], those before and after chunks [C + 1, B, H, N, P]."""
    p = pieces(s, u, dt, A, b, r)
    w = p.w.view(s.n, s.Q, s.P)
    V = w.new_empty(s.C + 1, s.B, s.H, s.N, s.P)
    _start(V[0], state)
    added = V[1:].view(s.n, s.N, s.P)
    torch.bmm(_times(s, p.after, p.b).transpose(1, 2), w, out=added)
    for c in range(s.C):
        V[c + 1].addcmul_(p.whole[c], V[c])
    y = torch.bmm(_times(s, p.between, p.products), w)
    y.baddbmm_(_times(s, p.before, p.r), V[:-1].view(s.n, s.N, s.P))
    last = V[-1].transpose(-1, -2).contiguous()
    return s.tokens(y.view(p.w.shape)).to(u.dtype), last, V


def _start(V: Tensor, state: Tensor | None) -> None:
    if state is None:
        V.zero_()
    else:
        V.copy_(state.transpose(-1, -2))


def backward(
    s: Shape,
    g: Tensor,
    g_last: Tensor | None,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    V: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, A, b, r and of the potentials before the first token [B, H, P, N]."""
    p = pieces(s, u, dt, A, b, r)
    Q, flat = s.Q, (s.n, s.N, s.P)
    w = p.w.view(s.n, Q, s.P)
    g = s.chunks(g).to(w.dtype).contiguous().view(s.n, Q, s.P)
    d_V = torch.empty_like(V)
    _start(d_V[-1], g_last)
    torch.bmm(_times(s, p.before, p.r).transpose(1, 2), g, out=d_V[:-1].view(flat))
    for c in reversed(range(s.C)):
        d_V[c].addcmul_(p.whole[c], d_V[c + 1])
    V_before, d_V_after = V[:-1].view(flat), d_V[1:].view(flat)
    d_w = torch.bmm(_times(s, p.between, p.products).transpose(1, 2), g)
    d_w.baddbmm_(_times(s, p.after, p.b), d_V_after)

    d_exponents = w.new_empty(s.C, s.B, s.H, Q * Q + 2 * Q)
    d_products = _by_group(s, torch.bmm(g, w.transpose(1, 2)).view(p.between.shape).mul_(p.between))
    torch.mul(
        d_products,
        p.products[:, :, :, None],
        out=_by_group(s, d_exponents[..., : Q * Q].unflatten(-1, (Q, Q))),
    )
    d_r_heads = _by_group(s, torch.bmm(g, V_before.transpose(1, 2)).view(*p.dt.shape, s.N).mul_(p.before))
    d_b_heads = _by_group(s, torch.bmm(w, d_V_after.transpose(1, 2)).view(*p.dt.shape, s.N).mul_(p.after))
    d_exponents[..., Q * Q : -Q] = (d_r_heads * p.r[:, :, :, None]).sum(-1).view(p.dt.shape)
    d_exponents[..., -Q:] = (d_b_heads * p.b[:, :, :, None]).sum(-1).view(p.dt.shape)
    carried = (V[:-1] * d_V[1:]).sum((-1, -2)).mul_(p.whole[..., 0, 0])
    d_step = torch.mm(d_exponents.view(s.n, -1), spans(Q, w).t()).view(p.dt.shape).add_(carried[..., None])

    by_group = (s.C * s.B * s.G, Q, -1)
    products = d_products.sum(3).tril_().view(by_group)
    d_r = d_r_heads.sum(3).view(by_group).baddbmm_(products, p.b.view(by_group))
    d_b = d_b_heads.sum(3).view(by_group).baddbmm_(products.transpose(1, 2), p.r.view(by_group))

    d_w = d_w.view(p.w.shape)
    d_A = (d_step * p.dt).sum(-1).sum((0, 1))
    d_dt = torch.mul(d_w, s.chunks(u)).sum(-1).addcmul_(d_step, A[:, None])
    return (
        s.tokens(d_w.mul_(p.dt[..., None])).to(u.dtype),
        s.tokens(d_dt).to(dt.dtype),
        d_A.to(A.dtype),
        s.tokens(d_b.view(p.b.shape)).to(b.dtype),
        s.tokens(d_r.view(p.r.shape)).to(r.dtype),
        d_V[0].transpose(-1, -2).contiguous(),
    )
