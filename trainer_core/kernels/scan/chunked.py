"""The scan by chunks of Q tokens on batched matrix products: for every device without a kernel.

With cum the running sum of A dt inside a chunk and V the potentials before the chunk:

    y_i = sum_{j <= i} ((r_i . b_j) exp(cum_i - cum_j) dt_j + skip [i = j]) u_j + exp(cum_i) V r_i
    V'  = exp(cum_Q) V + sum_j exp(cum_Q - cum_j) dt_j u_j b_j^T

Steps and skips are part of the small matrices that multiply u, so that no pass over u is theirs.

Every exponent is a sum over its own span of tokens, made by one product with a matrix of ones and zeros: not
a difference of long sums, so nothing cancels and nothing overflows. The transpose of that product gives the
gradient of A dt, and there too nothing cancels. The backward pass gets the inputs and the potentials around
chunks and makes the rest again. Everything runs in a fixed order without atomics: two runs give equal bits.

Shapes: C chunks of B rows, in a block some of them; d = C B, G groups of k heads, H = G k, n = d H.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trainer_core.kernels.scan.layout import Gradients, Inputs, Shape, blocks


class _Chunks(NamedTuple):
    """Inputs by chunks, of all or of a block; or their gradients, as if logs did not follow from steps."""

    u: Tensor
    """[C, B, H, Q, P], a view."""
    steps: Tensor
    """dt [d, G, k, 1, Q]."""
    logs: Tensor
    """A dt [n, Q]."""
    b: Tensor
    """[d, G, 1, Q, N]."""
    r: Tensor
    """[d, G, 1, Q, N]."""


class _Constants(NamedTuple):
    """What all blocks share."""

    spans: Tensor
    """Which tokens an exponent sums over: ones and zeros [Q, (Q + 2) Q].

    Column (i, j) takes the tokens j < t <= i, then Q columns take t <= i, the last Q columns t > j.
    """
    skip: Tensor
    """Skips on the diagonal [G, k, Q, Q]."""


class _Pieces(NamedTuple):
    """What both passes make of the inputs of a block."""

    between: Tensor
    """exp(cum_i - cum_j) where j <= i, 1 elsewhere [d, G, k, Q, Q]."""
    products: Tensor
    """r_i . b_j where j <= i, 0 elsewhere [d, G, 1, Q, Q]."""
    until: Tensor
    """exp(cum_i) [d, G, k, Q, 1]: what y takes of r times the potentials before the chunk."""
    beyond: Tensor
    """exp(cum_Q - cum_j) [d, G, k, Q, 1]."""
    written: Tensor
    """`beyond` times dt_j [d, G, k, Q, 1]: what the chunk's end takes of u times b."""
    whole: Tensor
    """exp(cum_Q) of each chunk [C, B, H, 1, 1]."""


def _spans(Q: int, like: Tensor) -> Tensor:
    ones = torch.ones(Q, Q, dtype=like.dtype, device=like.device)
    until, beyond = ones.triu(), ones.tril(-1)
    return torch.cat(((until[:, :, None] * beyond[:, None, :]).view(Q, Q * Q), until, beyond), dim=1)


def _prepared(s: Shape, x: Inputs) -> tuple[_Chunks, _Constants]:
    """All chunks, and what their blocks share."""
    d, k = s.chunks * s.B, s.H // s.G
    u, steps, b, r = (s.by_chunk(s.fill(t)) for t in (x.u, x.dt, x.b, x.r))
    steps = steps.contiguous()
    logs = steps * x.A[:, None]
    b, r = (t.to(steps.dtype).contiguous().view(d, s.G, 1, s.Q, s.N) for t in (b, r))
    one = torch.eye(s.Q, dtype=steps.dtype, device=steps.device)
    skip = torch.zeros_like(x.A) if x.skip is None else x.skip.to(steps.dtype)
    return (
        _Chunks(u, steps.view(d, s.G, k, 1, s.Q), logs.view(-1, s.Q), b, r),
        _Constants(_spans(s.Q, steps), one * skip.view(s.G, k, 1, 1)),
    )


def _pieces(x: _Chunks, constants: _Constants) -> _Pieces:
    d, G, k, _, Q = x.steps.shape
    decays = torch.mm(x.logs, constants.spans).exp_().view(d, G, k, Q + 2, Q)
    between, until, beyond = torch.split(decays, [Q, 1, 1], dim=3)
    products = torch.bmm(x.r.view(d * G, Q, -1), x.b.view(d * G, Q, -1).mT).tril_()
    return _Pieces(
        between=between,
        products=products.view(d, G, 1, Q, Q),
        until=until.mT,
        beyond=beyond.mT,
        written=torch.mul(beyond, x.steps).mT,
        whole=until[..., -1].view(*x.u.shape[:3], 1, 1),
    )


def _weights(x: _Chunks, p: _Pieces, constants: _Constants, out: Tensor) -> Tensor:
    """What y takes of u [n, Q, Q]: r_i . b_j exp(cum_i - cum_j) dt_j, on the diagonal the skip in addition.

    Spoils `between`: blocks are as large as the cache allows, so fewer tensors are more speed.
    """
    Q = out.shape[-1]
    return torch.addcmul(constants.skip, p.between.mul_(p.products), x.steps, out=out).view(-1, Q, Q)


def _scaled(shared: Tensor, factors: Tensor) -> Tensor:
    """b or r [d, G, 1, Q, N] times factors [d, G, k, Q, 1] of its heads, as matrices [n, Q, N]."""
    shape = (*factors.shape[:-1], shared.shape[-1])
    return torch.mul(shared, factors, out=factors.new_empty(shape)).view(-1, *shape[-2:])


def _matrices(x: Tensor, like: Tensor) -> Tensor:
    """x [C, B, H, Q, P] as matrices [n, Q, P] in the dtype of another."""
    return like.new_empty(x.shape).copy_(x).view(-1, *x.shape[-2:])


def forward(s: Shape, x: Inputs, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """y [B, T, H, P], the last potentials [B, H, P, N], the potentials around all chunks [num_potentials]."""
    y, V = s.empty(x.u), x.dt.new_empty(s.chunks + 1, s.B, s.H, s.N, s.P)
    _put(V[0], state)
    chunks, constants = _prepared(s, x)
    for *inputs, V_before, V_after, out in blocks(*chunks, V[:-1], V[1:], s.by_chunk(y)):
        _forward_block(_Chunks(*inputs), constants, V_before, V_after, out)
    return s.cut(y), V[-1].mT.contiguous(), V.view(-1)


def _forward_block(x: _Chunks, constants: _Constants, V_before: Tensor, V_after: Tensor, y: Tensor) -> None:
    """Fills y [C, B, H, Q, P] and the potentials V_after [C, B, H, N, P].

    V_before is the same memory from one chunk earlier on; its first potentials are there.
    """
    p, u = _pieces(x, constants), _matrices(x.u, x.steps)
    before, after = (V.view(-1, *V.shape[-2:]) for V in (V_before, V_after))
    torch.bmm(_scaled(x.b, p.written).mT, u, out=after)
    for earlier, later, whole in zip(V_before.unbind(), V_after.unbind(), p.whole.unbind(), strict=True):
        later.addcmul_(whole, earlier)
    out = torch.bmm(_weights(x, p, constants, u.new_empty(p.between.shape)), u)
    y.copy_(out.baddbmm_(_scaled(x.r, p.until), before).view(y.shape))


def _put(V: Tensor, state: Tensor | None) -> None:
    """V [B, H, N, P] from a state [B, H, P, N]."""
    if state is None:
        V.zero_()
    else:
        V.copy_(state.mT)


def backward(s: Shape, g: Tensor, g_last: Tensor | None, x: Inputs, V_all: Tensor) -> Gradients:
    """Gradients of u, dt, A, b, r, skip (also without one) and of the first potentials [B, H, P, N]."""
    chunks, constants = _prepared(s, x)
    V = V_all.view(s.chunks + 1, s.B, s.H, s.N, s.P)
    d_u, d_skip, d_after = s.empty(x.u), torch.zeros_like(x.A), torch.empty_like(V[0])
    _put(d_after, g_last)
    d = _Chunks(s.by_chunk(d_u), *(torch.empty_like(t) for t in chunks[1:]))
    n = len(chunks)
    for block in reversed(blocks(*chunks, *d, s.by_chunk(s.fill(g)), V[:-1])):
        inputs, out, (pull, V_before) = _Chunks(*block[:n]), _Chunks(*block[n : 2 * n]), block[2 * n :]
        d_after = _backward_block(inputs, constants, pull, V_before, d_after, out, d_skip)
    steps, d_steps, d_logs = (t.view(s.chunks, s.B, s.H, s.Q) for t in (chunks.steps, d.steps, d.logs))
    d_b, d_r = (s.by_token(t.view(s.chunks, s.B, s.G, s.Q, s.N)) for t in (d.b, d.r))
    return (
        s.cut(d_u),
        s.by_token(d_steps.addcmul_(d_logs, x.A[:, None])),
        (d_logs * steps).sum(-1).sum((0, 1)),
        d_b.to(x.b.dtype),
        d_r.to(x.r.dtype),
        d_skip,
        d_after.mT.contiguous(),
    )


def _backward_block(
    x: _Chunks, constants: _Constants, g: Tensor, V_before: Tensor, d_last: Tensor, d: _Chunks, d_skip: Tensor
) -> Tensor:
    """Fills d and adds to d_skip; the gradient of the potentials before the block [B, H, N, P].

    g [C, B, H, Q, P] is that of y, d_last that of the potentials after the block.
    """
    p, u, g = _pieces(x, constants), _matrices(x.u, x.steps), _matrices(g, x.steps)
    Q, (N, P), groups = p.between.shape[-1], V_before.shape[-2:], p.between.shape[:3]
    d_V = V_before.new_empty(len(V_before) + 1, *V_before.shape[1:])
    d_V[-1].copy_(d_last)
    d_V_before, d_V_after = d_V[:-1], d_V[1:]
    before, d_before, d_after = (V.view(-1, N, P) for V in (V_before, d_V_before, d_V_after))
    torch.bmm(_scaled(x.r, p.until).mT, g, out=d_before)
    steps_back = zip(d_V_before.unbind(), d_V_after.unbind(), p.whole.unbind(), strict=True)
    for earlier, later, whole in reversed(list(steps_back)):
        earlier.addcmul_(whole, later)

    d_exponents = g.new_empty(*groups, Q + 2, Q)
    d_between, d_until, d_beyond = torch.split(d_exponents, [Q, 1, 1], dim=3)
    d_weights = torch.bmm(g, u.mT).view(p.between.shape)
    d_skip.add_(d_weights.diagonal(dim1=-2, dim2=-1).sum((0, 3)).view(-1))
    d_weights.mul_(p.between)
    torch.mul(d_weights, p.products, out=d_between)
    torch.sum(d_between, -2, keepdim=True, out=d.steps)
    d_between.mul_(x.steps)
    d_products = d_weights.mul_(x.steps).sum(2).view(-1, Q, Q).tril_()

    d_writes = torch.bmm(u, d_after.mT).view(*groups, Q, N)
    d_written = _row_sums(d_writes * x.b)
    torch.mul(d_written, p.written, out=d_beyond.mT)
    d.steps.addcmul_(d_written.mT, p.beyond.mT)
    _by_group(d_writes.mul_(p.written), d_products.mT, x.r, d.b)
    del d_writes
    d_reads = torch.bmm(g, before.mT).view(*groups, Q, N)
    torch.mul(_row_sums(d_reads * x.r), p.until, out=d_until.mT)
    _by_group(d_reads.mul_(p.until), d_products, x.b, d.r)
    del d_reads

    kept = torch.mul(V_before, d_V_after).view(-1, N * P).sum(-1, keepdim=True)
    kept.mul_(p.whole.reshape(-1, 1))
    torch.addmm(kept, d_exponents.view(-1, (Q + 2) * Q), constants.spans.t(), out=d.logs)
    d_u = torch.bmm(_weights(x, p, constants, d_weights).mT, g)
    d.u.copy_(d_u.baddbmm_(_scaled(x.b, p.written), d_after).view(d.u.shape))
    return d_V[0]


def _by_group(by_head: Tensor, d_products: Tensor, other: Tensor, out: Tensor) -> None:
    """Fills the gradient of b or r: by head [d, G, k, Q, N], and by way of their products [d G, Q, Q]."""
    Q, N = by_head.shape[-2:]
    own, other, out = (t.view(-1, Q, N) for t in (by_head.sum(2), other, out))
    torch.baddbmm(own, d_products, other, out=out)


def _row_sums(x: Tensor) -> Tensor:
    """Sums over the last dimension, short here: as a product they take a third less time."""
    return torch.mv(x.view(-1, x.shape[-1]), x.new_ones(x.shape[-1])).view(*x.shape[:-1], 1)
