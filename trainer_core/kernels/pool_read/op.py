"""The pool read as an operator of our own, so that a trace on meta tensors sees its true saved sizes.

The operator owns shapes, autograd and what is saved; the arithmetic lives in `blocks` and `triton`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_core.kernels.pool_read import blocks
from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.target import target
from trainer_core.kernels.tensors import wide_dtype

SAVE_UP_TO = 1024
"""Most events whose weights are kept for the backward pass; longer rows recompute them, and so do kernels."""

KERNEL_HEAD_DIMS = {torch.bfloat16: (16, 32, 64, 128), torch.float32: (16, 32, 64)}
"""What rows of q, k and v may measure for a kernel, by dtype: wider ones in float32 find no room."""

KERNEL_QUERIES = 16
"""Fewer, as in decoding, would fill no block, and batched products read the events as fast."""


def has_kernel(q: Tensor) -> bool:
    """Whether there is a kernel for such queries on their device."""
    T, d = q.shape[2:]
    return target(q) == "cuda" and d in KERNEL_HEAD_DIMS.get(q.dtype, ()) and T >= KERNEL_QUERIES


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    clock: Tensor,
    log_write: Tensor,
    ids: Tensor,
    before: Tensor,
    match: Tensor,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    B, H, T, _ = q.shape
    wide = wide_dtype(q, clock)
    saved = B * H * blocks.saved_size(T, k.shape[2]) if save else 0
    return (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        q.new_empty(B, H, 0 if save else T, dtype=wide),
        q.new_empty(saved, dtype=wide),
    )


def _launched(q: Tensor, *rest: Any) -> bool:
    return has_kernel(q)


@operator("pool_read", fake=_fake, composed=True, launched=_launched)
def _pool_read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    clock: Tensor,
    log_write: Tensor,
    ids: Tensor,
    before: Tensor,
    match: Tensor,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, H, T, d], log-sum-exp [B, H, T] and saved weights."""
    if has_kernel(q):
        from trainer_core.kernels.pool_read.triton import forward_triton, inputs

        out, lse = forward_triton(inputs(q, k, v, clock, log_write, ids, before, match))
        return out, lse, lse.new_empty(0)
    p = blocks.pool(q, k, clock, log_write, ids, before, match)
    out, lse, saved = blocks.forward(p, v.to(p.q.dtype).contiguous(), save)
    return out.flatten(1, 2).to(q.dtype), lse.flatten(1, 2), saved


def _fake_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    clock: Tensor,
    log_write: Tensor,
    ids: Tensor,
    before: Tensor,
    match: Tensor,
    out: Tensor,
    lse: Tensor,
    saved: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dense = torch.contiguous_format
    q, k, v, clock, log_write, match = (
        torch.empty_like(x, memory_format=dense) for x in (q, k, v, clock, log_write, match)
    )
    return q, k, v, clock, log_write, match


def _launched_backward(grad: Tensor, q: Tensor, *rest: Any) -> bool:
    return has_kernel(q)


@operator("pool_read_backward", fake=_fake_backward, composed=True, launched=_launched_backward)
def _pool_read_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    clock: Tensor,
    log_write: Tensor,
    ids: Tensor,
    before: Tensor,
    match: Tensor,
    out: Tensor,
    lse: Tensor,
    saved: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, clock, log_write and match."""
    if has_kernel(q):
        from trainer_core.kernels.pool_read.triton import backward_triton, inputs

        read = inputs(q, k, v, clock, log_write, ids, before, match)
        dq, dk, dv, dclock, dlog_write, dmatch = backward_triton(read, grad, out, lse)
        wrt = dclock.to(clock.dtype), dlog_write.to(log_write.dtype), dmatch.to(match.dtype)
        return dq, dk, dv, *wrt
    p = blocks.pool(q, k, clock, log_write, ids, before, match)
    shape, wide = p.q.shape, p.q.dtype
    made = blocks.backward(
        p,
        v.to(wide).contiguous(),
        grad.to(wide).reshape(shape),
        lse.view(*shape[:3], -1),
        saved,
    )
    return (
        made.q.flatten(1, 2).to(q.dtype),
        made.k.to(k.dtype),
        made.v.to(v.dtype),
        made.clock.flatten(1, 2).to(clock.dtype),
        made.clock.sum(2).to(log_write.dtype),
        made.match.flatten(1, 2).to(match.dtype),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    out, lse, saved = output
    ctx.mark_non_differentiable(lse, saved)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:-1], out, lse, saved)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 9
    q, k, v, clock, log_write, match = _pool_read_backward(grad, *ctx.saved_tensors)
    return q, k, v, clock, log_write, None, None, match, None


differentiate("pool_read", _backward, setup=_setup)


def pool_read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    clock: Tensor,
    log_write: Tensor,
    ids: Tensor,
    before: Tensor,
    match: Tensor,
) -> Tensor:
    """What queries q [B, H, T, d] read of S events with keys k and values v [B, K, S, d]: [B, H, T, d].

    The queries are the last T events and read those up to their own; query head h reads key head
    h // (H / K). Beside q.k / sqrt(d), q rotated and scaled before, the logit of event s for the query of
    event t holds clock_s - clock_t (clock [B, H, S]), log_write_s ([B, K, S]), and match_t ([B, H, T])
    where before_s == ids_t: `ids` [B, T] are the tokens of the queries, `before` [B, S] holds the token
    before each event, -1 for none. The query's own clock moves no weight and gets no gradient.
    """
    assert q.shape[1] % k.shape[1] == 0 and q.shape[2] <= k.shape[2], (q.shape, k.shape)
    assert q.dtype == k.dtype == v.dtype, (q.dtype, k.dtype, v.dtype)
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, clock, log_write, match))
    save = needs_grad and k.shape[2] <= SAVE_UP_TO and not has_kernel(q)
    out: Tensor = _pool_read(q, k, v, clock, log_write, ids, before, match, save)[0]
    return out


@torch.no_grad()
def pool_weights(
    q: Tensor, k: Tensor, clock: Tensor, log_write: Tensor, ids: Tensor, before: Tensor, match: Tensor
) -> Tensor:
    """The weights [B, H, T, S] of `pool_read`, for probes; in the dtype that they are computed in.

    Queries that end earlier are those of a pool that ends earlier: cut the events, and a long row can be
    looked at part by part.
    """
    return blocks.weights(blocks.pool(q, k, clock, log_write, ids, before, match)).flatten(1, 2)
