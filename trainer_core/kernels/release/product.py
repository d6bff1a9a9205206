"""The product of two releases, of a gated FFN, as one operator with an explicit backward pass.

In float32 on a CPU the forward pass keeps what the two release instead of their potentials, at the same size;
elsewhere, and for a binary release, it keeps the potentials.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.release.parts import (
    binary_gradients,
    graded_gradients,
    keeps,
    like,
    nothing,
    theta_gradient,
    values,
)
from trainer_core.kernels.target import launchable
from trainer_core.kernels.tensors import as_rows, wide


def _fake(
    g: Tensor, u: Tensor, theta_g: Tensor, theta_u: Tensor, binary: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    kept = [like(x) if keep else nothing(as_rows(x)) for x in (g, u)]
    return like(g), kept[0], kept[1]


@operator("release_product", fake=_fake)
def _product(
    g: Tensor, u: Tensor, theta_g: Tensor, theta_u: Tensor, binary: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The result and, if they are kept, its two factors."""
    if launchable(g, u, theta_g, theta_u):
        from trainer_core.kernels.release.launch import release_triton

        plain = release_triton(as_rows(g), theta_g, as_rows(u), theta_u, two_sided=False, binary=binary)
        return plain.view(g.shape), nothing(as_rows(g)), nothing(as_rows(u))
    wide_g, wide_u = wide(as_rows(g)), wide(as_rows(u))
    a = values(wide_g, theta_g.abs().to(wide_g.dtype), False, binary)
    b = values(wide_u, theta_u.abs().to(wide_u.dtype), False, binary)
    if keep:
        return (a * b).view(g.shape), a.view(g.shape), b.view(g.shape)
    return a.mul_(b).to(g.dtype).view(g.shape), nothing(wide_g), nothing(wide_u)


def _fake_backward(
    grad: Tensor, g: Tensor, u: Tensor, theta_g: Tensor, theta_u: Tensor, binary: bool, kept: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return like(g), like(u), torch.empty_like(theta_g), torch.empty_like(theta_u)


@operator("release_product_backward", fake=_fake_backward)
def _product_backward(
    grad: Tensor, g: Tensor, u: Tensor, theta_g: Tensor, theta_u: Tensor, binary: bool, kept: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of all four; if `kept`, g and u are what was released."""
    if launchable(grad, g, u, theta_g, theta_u):
        from trainer_core.kernels.release.launch import release_backward_triton

        d_g, d_t_g, d_u, d_t_u = release_backward_triton(
            as_rows(grad), as_rows(g), theta_g, as_rows(u), theta_u, two_sided=False, binary=binary
        )
        return (
            d_g.view(grad.shape),
            d_u.view(grad.shape),
            theta_gradient(d_t_g, theta_g),
            theta_gradient(d_t_u, theta_u),
        )
    pull, wide_g, wide_u = wide(as_rows(grad)), wide(as_rows(g)), wide(as_rows(u))
    t_g, t_u = theta_g.abs().to(wide_g.dtype), theta_u.abs().to(wide_u.dtype)
    a = wide_g if kept else values(wide_g, t_g, False, binary)
    b = wide_u if kept else values(wide_u, t_u, False, binary)
    if binary:
        d_g, d_t_g = binary_gradients(pull * b, wide_g, t_g, False)
        d_u, d_t_u = binary_gradients(pull * a, wide_u, t_u, False)
    else:
        d_g, d_t_g = graded_gradients(pull * b, a, False, overwrite=True)
        d_u, d_t_u = graded_gradients(pull * a, b, False, overwrite=True)
    return (
        d_g.to(g.dtype).view(grad.shape),
        d_u.to(u.dtype).view(grad.shape),
        theta_gradient(d_t_g, theta_g),
        theta_gradient(d_t_u, theta_u),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    g, u, theta_g, theta_u, ctx.binary, ctx.kept = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*(output[1:] if ctx.kept else (g, u)), theta_g, theta_u)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 6
    return *_product_backward(grad.contiguous(), *ctx.saved_tensors, ctx.binary, ctx.kept), None, None


differentiate("release_product", _backward, setup=_setup)


def release_product(
    g: Tensor, u: Tensor, theta_g: Tensor, theta_u: Tensor, *, binary: bool = False
) -> Tensor:
    """release(g) * release(u) for g and u [..., F] over thresholds [F], in the dtype of g."""
    out: Tensor = _product(g, u, theta_g, theta_u, binary, not binary and keeps(g, u))[0]
    return out
