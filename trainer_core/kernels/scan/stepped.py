"""The scan with one compartment, such as a trace, for a CPU: a step of all rows and chunks at a time.

With one compartment heads share no product of matrices, and the Q x Q exponents of a chunk are more than its
values. So the recurrence runs over the Q tokens of a chunk, for all rows, chunks and channels at once, then
over the chunks; what a chunk begins with is added with its decay. Exponents are of sums over their own span
of tokens, as in `chunked`. Values stand as [Q, P, B, c, H] for c chunks: what heads have of their own is a
long piece of memory beside each channel's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer_core.kernels.scan.layout import Gradients, Inputs, Shape


def fits(s: Shape, device: str) -> bool:
    """Whether a scan of this shape is made so on a kind of device."""
    return device == "cpu" and s.N == 1


@dataclass(frozen=True, kw_only=True)
class _Pieces:
    """What both passes make of the inputs."""

    u: Tensor
    """[Q, P, B, c, H]."""
    steps: Tensor
    """dt [Q, B, c, H]."""
    b: Tensor
    """[Q, B, c, H]."""
    r: Tensor
    """[Q, B, c, H]."""
    sums: Tensor
    """A dt [Q, B, c, H]."""
    decays: Tensor
    """exp(A dt) [Q, 1, B, c, H]."""


def _channels(s: Shape, x: Tensor, dtype: torch.dtype) -> Tensor:
    """x [B, T, H, P] as [Q, P, B, c, H]."""
    return s.fill(x).permute(2, 4, 0, 1, 3).to(dtype).contiguous()


def _heads(s: Shape, x: Tensor, dtype: torch.dtype) -> Tensor:
    """x [B, T, H] or of groups [B, T, G, 1] as [Q, B, c, H]."""
    x = s.fill(x.flatten(2)).movedim(2, 0).to(dtype)
    return x.repeat_interleave(s.H // x.shape[-1], dim=-1).contiguous()


def _groups(s: Shape, x: Tensor) -> Tensor:
    """Gradients by head [Q, B, c, H] as those of what groups share [B, T, G, 1]."""
    by_group = x.view(*x.shape[:-1], s.G, -1).sum(-1, keepdim=True)
    return s.cut(by_group.movedim(0, 2).contiguous())


def _pieces(s: Shape, x: Inputs) -> _Pieces:
    dtype = x.dt.dtype
    steps = _heads(s, x.dt, dtype)
    sums = steps * x.A
    return _Pieces(
        u=_channels(s, x.u, dtype),
        steps=steps,
        b=_heads(s, x.b, dtype),
        r=_heads(s, x.r, dtype),
        sums=sums,
        decays=sums.exp()[:, None],
    )


def _decay(p: _Pieces, *, beyond: bool) -> Tensor:
    """exp of the sums of A dt up to and with each token of a chunk, or beyond it [Q, 1, B, c, H]."""
    Q = p.sums.shape[0]
    ones = p.sums.new_ones(Q, Q)
    span = ones.triu(1) if beyond else ones.tril()
    return torch.mm(span, p.sums.flatten(1)).exp_().view(p.decays.shape)


def _inside(p: _Pieces) -> Tensor:
    """Potentials [Q, P, B, c, H] of chunks that begin with none."""
    V = p.u * (p.steps * p.b)[:, None]
    for before, after, decay in zip(V[:-1].unbind(), V[1:].unbind(), p.decays[1:].unbind(), strict=True):
        after.addcmul_(decay, before)
    return V


def forward(s: Shape, x: Inputs, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """y [B, T, H, P], the last potentials [B, H, P, 1], the potentials around all chunks [num_potentials]."""
    p = _pieces(s, x)
    V, until = _inside(p), _decay(p, beyond=False)
    around = V.new_empty(s.chunks + 1, s.P, s.B, s.H)
    if state is None:
        around[0].zero_()
    else:
        around[0].copy_(state[..., 0].permute(2, 0, 1))
    for c in range(s.chunks):
        torch.addcmul(V[-1, :, :, c], until[-1, :, :, c], around[c], out=around[c + 1])
    V.addcmul_(until, _first(around))
    y = V.mul_(p.r[:, None])
    if x.skip is not None:
        y.addcmul_(p.u, x.skip)
    return _tokens(s, y, x.u.dtype), around[-1].permute(1, 2, 0)[..., None].contiguous(), around.view(-1)


def _first(around: Tensor) -> Tensor:
    """What chunks begin with [P, B, c, H], of the potentials around chunks [c + 1, P, B, H]."""
    return around[:-1].permute(1, 2, 0, 3).contiguous()


def _tokens(s: Shape, x: Tensor, dtype: torch.dtype) -> Tensor:
    """x [Q, P, B, c, H] as [B, T, H, P]."""
    return s.cut(x.permute(2, 3, 0, 4, 1).to(dtype).contiguous())


def backward(s: Shape, g: Tensor, g_last: Tensor | None, x: Inputs, V_all: Tensor) -> Gradients:
    """Gradients of u, dt, A, b, r, skip (also without one) and of the first potentials [B, H, P, 1]."""
    p = _pieces(s, x)
    g = _channels(s, g, p.u.dtype)
    first = _first(V_all.view(s.chunks + 1, s.P, s.B, s.H))
    until = _decay(p, beyond=False)
    V = _inside(p).addcmul_(until, first)
    d_r, d_skip = (g * V).sum(1), (g * p.u).sum((0, 1, 2, 3))

    d_V = g * p.r[:, None]
    steps_back = zip(d_V[:-1].unbind(), d_V[1:].unbind(), p.decays[1:].unbind(), strict=True)
    for before, after, decay in reversed(list(steps_back)):
        before.addcmul_(decay, after)
    whole, starts = until[-1], d_V[0] * p.decays[0]
    d_next = d_V.new_zeros(s.P, s.B, s.H) if g_last is None else g_last[..., 0].permute(2, 0, 1)
    ends = torch.empty_like(first)
    for c in reversed(range(s.chunks)):
        ends[:, :, c] = d_next
        d_next = torch.addcmul(starts[:, :, c], whole[:, :, c], d_next)
    d_V.addcmul_(_decay(p, beyond=True), ends)

    d_sums = torch.cat(((d_V[:1] * first).sum(1), (d_V[1:] * V[:-1]).sum(1))).mul_(p.decays[:, 0])
    d_writes = (d_V * p.u).sum(1)
    d_dt = torch.addcmul(d_sums * x.A, d_writes, p.b)
    d_u = d_V.mul_((p.steps * p.b)[:, None])
    if x.skip is not None:
        d_u.addcmul_(g, x.skip)
    return (
        _tokens(s, d_u, x.u.dtype),
        s.cut(d_dt.movedim(0, 2).contiguous()),
        (d_sums * p.steps).sum((0, 1, 2)),
        _groups(s, d_writes.mul_(p.steps)).to(x.b.dtype),
        _groups(s, d_r).to(x.r.dtype),
        d_skip,
        d_next.permute(1, 2, 0)[..., None].contiguous(),
    )
