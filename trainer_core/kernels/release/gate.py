"""A dendritic soma: norm, release and gate as one operator with an explicit backward pass.

On a CPU an exponential costs as much as ten sums, so the forward pass keeps the sigmoid and what was
released; a GPU, bound by memory, and narrow inputs compute both again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer_core.kernels.norm.op import norm_gradients
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
from trainer_core.kernels.tensors import as_rows, wide, wide_dtype


def _normed(s: Tensor, gain: Tensor, scale: Tensor) -> Tensor:
    return torch.mul(s, scale).mul_(gain)


def _released(s: Tensor, gain: Tensor, t: Tensor, scale: Tensor, binary: bool) -> Tensor:
    if binary:
        return values(_normed(s, gain, scale), t, False, True)
    normed = torch.mul(s, scale)
    return torch.addcmul(t.neg(), normed, gain, out=normed).relu_()


def _fake_gate(
    s: Tensor, gain: Tensor, theta: Tensor, z: Tensor, eps: float, binary: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    compute = wide_dtype(s)
    shape = (s.numel() // s.shape[-1], s.shape[-1] if keep else 0)
    kept = [s.new_empty(shape, dtype=compute) for _ in range(2)]
    return like(z), s.new_empty(shape[0], 1, dtype=compute), kept[0], kept[1]


@operator("norm_release_gate", fake=_fake_gate)
def _gate(
    s: Tensor, gain: Tensor, theta: Tensor, z: Tensor, eps: float, binary: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result, the norm's scale [n, 1] and, if they are kept, what was released and sigmoid(z)."""
    if launchable(s, gain, theta, z):
        from trainer_core.kernels.release.launch import gate_triton

        plain, scale = gate_triton(as_rows(s), gain, theta, as_rows(z), eps, binary=binary)
        return plain.view(z.shape), scale, nothing(scale), nothing(scale)
    rows = wide(as_rows(s))
    dtype = rows.dtype
    g, t, gate = gain.to(dtype), theta.abs().to(dtype), as_rows(z).to(dtype)
    squares = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).square_()
    scale = squares.div_(rows.shape[-1]).add_(eps).rsqrt_()
    released = _released(rows, g, t, scale, binary)
    if not keep:
        out = released.mul_(F.silu(gate))
        return out.to(z.dtype).view(z.shape), scale, nothing(rows), nothing(rows)
    sigmoid = torch.sigmoid(gate)
    out = torch.mul(gate, sigmoid).mul_(released)
    return out.to(z.dtype).view(z.shape), scale, released, sigmoid


def _fake_gate_backward(
    grad: Tensor,
    s: Tensor,
    gain: Tensor,
    theta: Tensor,
    z: Tensor,
    scale: Tensor,
    out: Tensor,
    released: Tensor,
    sigmoid: Tensor,
    binary: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return like(s), torch.empty_like(gain), torch.empty_like(theta), like(z)


@operator("norm_release_gate_backward", fake=_fake_gate_backward)
def _gate_backward(
    grad: Tensor,
    s: Tensor,
    gain: Tensor,
    theta: Tensor,
    z: Tensor,
    scale: Tensor,
    out: Tensor,
    released: Tensor,
    sigmoid: Tensor,
    binary: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of s, gain, theta and z; `out` is read where released and sigmoid were kept, else empty."""
    if launchable(grad, s, gain, theta, z):
        from trainer_core.kernels.release.launch import gate_backward_triton

        d_s, d_gain, d_t, d_z = gate_backward_triton(
            as_rows(grad), as_rows(s), gain, theta, as_rows(z), scale, binary=binary
        )
        return d_s.view(s.shape), d_gain.to(gain.dtype), theta_gradient(d_t, theta), d_z.view(z.shape)
    rows, dtype = wide(as_rows(s)), scale.dtype
    pull = as_rows(grad).to(dtype)
    g, t, gate = gain.to(dtype), theta.abs().to(dtype), as_rows(z).to(dtype)
    if released.numel() == 0:
        released, sigmoid = _released(rows, g, t, scale, binary), torch.sigmoid(gate)
        out = released * gate * sigmoid
    # silu(z)' = sigmoid + silu (1 - sigmoid), times what was released
    inner = torch.sub(released, as_rows(out))
    d_z = torch.addcmul(as_rows(out), sigmoid, inner, out=inner).mul_(pull)
    d_released = torch.mul(gate, sigmoid).mul_(pull)
    if binary:
        d_normed, d_t = binary_gradients(d_released, _normed(rows, g, scale), t, False)
    else:
        d_normed, d_t = graded_gradients(d_released, released, False, overwrite=True)
    d_rows, d_gain = norm_gradients(d_normed, rows, g, scale)
    return (
        d_rows.to(s.dtype).view(s.shape),
        d_gain.to(gain.dtype),
        theta_gradient(d_t, theta),
        d_z.to(z.dtype).view(z.shape),
    )


def _setup_gate(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    s, gain, theta, z, _, ctx.binary, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    out, scale, released, sigmoid = output
    ctx.save_for_backward(s, gain, theta, z, scale, out if released.numel() else released, released, sigmoid)


def _backward_gate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 7
    gradients = _gate_backward(grad.contiguous(), *ctx.saved_tensors, ctx.binary)
    return *gradients, None, None, None


differentiate("norm_release_gate", _backward_gate, setup=_setup_gate)


def norm_release_gate(
    s: Tensor, gain: Tensor, theta: Tensor, z: Tensor, eps: float, *, binary: bool = False
) -> Tensor:
    """release(RMSNorm(s)) * silu(z) for s and z [..., C], gain and theta [C], in the dtype of z."""
    out: Tensor = _gate(s, gain, theta, z, eps, binary, keeps(s, z))[0]
    return out
