"""The scan as an operator of our own: shapes, autograd, what is saved; the arithmetic lives in `chunked`,
of one compartment on a CPU in `stepped`, on a GPU in `triton`.

Saved are the inputs and the potentials before and after each chunk; the backward pass makes the rest again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.scan import chunked, stepped
from trainer_core.kernels.scan.layout import Inputs, Shape, chunk_length, has_kernels
from trainer_core.kernels.target import target


def _wide(u: Tensor, dt: Tensor) -> torch.dtype:
    return dt.dtype


def _fake(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    skip: Tensor | None,
    state: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    s = Shape.of(Inputs(u, dt, A, b, r, skip), chunk)
    last = u.new_empty(s.B, s.H, s.P, s.N, dtype=_wide(u, dt))
    return u.new_empty(u.shape), last, last.new_empty(s.num_potentials)


def _launched(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    skip: Tensor | None,
    state: Tensor | None,
    chunk: int,
) -> bool:
    return has_kernels(Inputs(u, dt, A, b, r, skip), chunk)


@operator("scan", fake=_fake, composed=True, launched=_launched)
def scan_forward(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    skip: Tensor | None,
    state: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last potentials, the potentials before and after each chunk."""
    x = Inputs(u, dt, A, b, r, skip)
    s = Shape.of(x, chunk)
    if has_kernels(x, chunk):
        from trainer_core.kernels.scan import triton

        return triton.forward_triton(s, x, state)
    forward = stepped.forward if stepped.fits(s, target(u)) else chunked.forward
    return forward(s, x, state)


def _fake_backward(
    g: Tensor,
    g_last: Tensor | None,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    skip: Tensor | None,
    V: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    s = Shape.of(Inputs(u, dt, A, b, r, skip), chunk)
    d_u, d_dt, d_A, d_b, d_r, d_skip = (x.new_empty(x.shape) for x in (u, dt, A, b, r, A))
    return d_u, d_dt, d_A, d_b, d_r, d_skip, V.new_empty(s.B, s.H, s.P, s.N)


def _launched_backward(g: Tensor, g_last: Tensor | None, *rest: Any) -> bool:
    *inputs, _, chunk = rest
    return has_kernels(Inputs(*inputs), chunk)


@operator("scan_backward", fake=_fake_backward, composed=True, launched=_launched_backward)
def scan_backward(
    g: Tensor,
    g_last: Tensor | None,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    skip: Tensor | None,
    V: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, A, b, r, skip (of no use without one) and of the first potentials."""
    x = Inputs(u, dt, A, b, r, skip)
    s = Shape.of(x, chunk)
    if has_kernels(x, chunk):
        from trainer_core.kernels.scan import triton

        return triton.backward_triton(s, g, g_last, x, V)
    backward = stepped.backward if stepped.fits(s, target(u)) else chunked.backward
    return backward(s, g, g_last, x, V)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    u, dt, A, b, r, skip, state, ctx.chunk = inputs
    ctx.has_state = state is not None
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(u, dt, A, b, r, skip, output[2])


def _backward(ctx: Any, g: Tensor | None, g_last: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if g is None and g_last is None:
        return (None,) * 8
    u, dt, A, b, r, skip, V = ctx.saved_tensors
    g = torch.zeros_like(u) if g is None else g
    *grads, d_skip, d_state = scan_backward(g.contiguous(), g_last, u, dt, A, b, r, skip, V, ctx.chunk)
    d_skip = None if skip is None else d_skip.to(skip.dtype)
    return *grads, d_skip, d_state if ctx.has_state else None, None


differentiate("scan", _backward, setup=_setup)


def scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    state: Tensor | None = None,
    *,
    skip: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """V_t = exp(A dt_t) V_{t-1} + dt_t u_t b_t^T, y_t = V_t r_t + skip u_t; y [B, T, H, P] and the last V.

    u [B, T, H, P], dt [B, T, H], A [H] negative, b and r [B, T, G, N] with H a multiple of G, V and state
    [B, H, P, N], skip [H], zeros where one is None. dt, A and the state are float32 or wider; y has the dtype
    of u. Only kernels take copies of slices of something wider.
    """
    Q = chunk_length(u, b, chunk)
    if has_kernels(Inputs(u, dt, A, b, r, skip), Q):
        u, b, r = u.contiguous(), b.contiguous(), r.contiguous()
    y, last, _ = scan_forward(u, dt.contiguous(), A, b, r, skip, state, Q)
    return y, last
