"""The scan as an operator of our own: shapes, autograd, what is saved; the arithmetic lives in `chunked`,
on a GPU in `triton`.

Saved are the inputs and the potentials before and after each chunk; the backward pass makes the rest again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.scan import chunked
from trainer_core.kernels.scan.layout import Shape, chunk_length, has_kernels


def _wide(u: Tensor, dt: Tensor) -> torch.dtype:
    return dt.dtype


def _fake(
    u: Tensor, dt: Tensor, A: Tensor, b: Tensor, r: Tensor, state: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    s = Shape.of(u, b, chunk)
    last = u.new_empty(s.B, s.H, s.P, s.N, dtype=_wide(u, dt))
    return torch.empty_like(u), last, last.new_empty(s.num_potentials)


def _launched(
    u: Tensor, dt: Tensor, A: Tensor, b: Tensor, r: Tensor, state: Tensor | None, chunk: int
) -> bool:
    return has_kernels(u, dt, b, chunk)


@operator("scan", fake=_fake, composed=True, launched=_launched)
def scan_forward(
    u: Tensor, dt: Tensor, A: Tensor, b: Tensor, r: Tensor, state: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last potentials, the potentials before and after each chunk."""
    s = Shape.of(u, b, chunk)
    if has_kernels(u, dt, b, chunk):
        from trainer_core.kernels.scan import triton

        return triton.forward_triton(s, u, dt, A, b, r, state)
    return chunked.forward(s, u, dt, A, b, r, state)


def _fake_backward(
    g: Tensor,
    g_last: Tensor | None,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    V: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_u, d_dt, d_A, d_b, d_r = (torch.empty_like(x) for x in (u, dt, A, b, r))
    s = Shape.of(u, b, chunk)
    return d_u, d_dt, d_A, d_b, d_r, V.new_empty(s.B, s.H, s.P, s.N)


def _launched_backward(
    g: Tensor, g_last: Tensor | None, u: Tensor, dt: Tensor, A: Tensor, b: Tensor, *rest: Any
) -> bool:
    return has_kernels(u, dt, b, rest[-1])


@operator("scan_backward", fake=_fake_backward, composed=True, launched=_launched_backward)
def scan_backward(
    g: Tensor,
    g_last: Tensor | None,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    V: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, A, b, r and of the first potentials."""
    s = Shape.of(u, b, chunk)
    if has_kernels(u, dt, b, chunk):
        from trainer_core.kernels.scan import triton

        return triton.backward_triton(s, g, g_last, u, dt, A, b, r, V)
    return chunked.backward(s, g, g_last, u, dt, A, b, r, V)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    u, dt, A, b, r, state, ctx.chunk = inputs
    ctx.has_state = state is not None
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(u, dt, A, b, r, output[2])


def _backward(ctx: Any, g: Tensor | None, g_last: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if g is None and g_last is None:
        return (None,) * 7
    u, dt, A, b, r, V = ctx.saved_tensors
    g = torch.zeros_like(u) if g is None else g
    *grads, d_state = scan_backward(g.contiguous(), g_last, u, dt, A, b, r, V, ctx.chunk)
    return *grads, d_state if ctx.has_state else None, None


differentiate("scan", _backward, setup=_setup)


def scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    r: Tensor,
    state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """V_t = exp(A dt_t) V_{t-1} + dt_t u_t b_t^T, y_t = V_t r_t; y [B, T, H, P] and the last V [B, H, P, N].

    u [B, T, H, P], dt [B, T, H], A [H] negative, b and r [B, T, G, N] with H a multiple of G, state
    [B, H, P, N], zeros where it is None. dt, A and the state are float32 or wider; y has the dtype of u.
    """
    Q = chunk_length(u, chunk)
    y, last, _ = scan_forward(*(x.contiguous() for x in (u, dt, A, b, r)), state, Q)
    return y, last
