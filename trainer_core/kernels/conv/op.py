"""The causal depthwise convolution with its activation as an operator with an explicit backward pass.

It reads slices of something wider without a copy, and keeps nothing but its inputs: memory is slower than
convolving again. Kernels of a GPU are in `triton`, all else is in `tiled`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer_core.kernels.conv.tiled import convolve, convolve_backward
from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.target import launchable
from trainer_core.kernels.tensors import wide


def _launchable(width: int, *tensors: Tensor | None) -> bool:
    """Whether our kernels for a GPU take these."""
    return width == 4 and launchable(*(t for t in tensors if t is not None))


def _new_state(x: Tensor, width: int, state: Tensor | None) -> Tensor:
    """The last W-1 inputs."""
    B, T, C = x.shape
    if width - 1 <= T:
        return x[:, T - (width - 1) :].clone()
    before = x.new_zeros(B, width - 1, C) if state is None else state.to(x.dtype)
    return torch.cat((before[:, T:], x), dim=1)


def _seen(x: Tensor, taps: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The inputs after those of a state, and the taps [W, C], both in the dtype that is computed in."""
    seen = wide(x)
    if state is not None:
        seen = torch.cat((state.to(seen.dtype), seen), dim=1)
    return seen, taps.to(seen.dtype).t().contiguous()


def _fake(x: Tensor, taps: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    B, T, C = x.shape
    return x.new_empty(B, T, C), x.new_empty(B, taps.shape[1] - 1, C)


@operator("causal_conv_silu", fake=_fake)
def _conv(x: Tensor, taps: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The result and the new state."""
    after = _new_state(x, taps.shape[1], state)
    if _launchable(taps.shape[1], x, taps, state):
        from trainer_core.kernels.conv.triton import conv_triton

        return conv_triton(x, taps, state), after
    seen, columns = _seen(x, taps, state)
    y = convolve(seen, columns)
    return y[:, seen.shape[1] - x.shape[1] :].to(x.dtype).contiguous(), after


def _fake_backward(
    grad: Tensor, x: Tensor, taps: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    B, _, C = x.shape
    d_state = x.new_empty(B, taps.shape[1] - 1 if state is not None else 0, C)
    return x.new_empty(x.shape), torch.empty_like(taps), d_state


@operator("causal_conv_silu_backward", fake=_fake_backward)
def _conv_backward(
    grad: Tensor, x: Tensor, taps: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, taps and state (of no tokens without one)."""
    if _launchable(taps.shape[1], grad, x, taps, state):
        from trainer_core.kernels.conv.triton import conv_backward_triton

        d_x, d_taps, d_state = conv_backward_triton(grad, x, taps, state)
        return d_x, d_taps.to(taps.dtype), d_state
    seen, columns = _seen(x, taps, state)
    if state is not None:
        grad = torch.cat((torch.zeros_like(state, dtype=grad.dtype), grad), dim=1)
    d_seen, d_columns = convolve_backward(grad, seen, columns)
    before = seen.shape[1] - x.shape[1]
    d_state, d_x = d_seen[:, :before].to(x.dtype, copy=True), d_seen[:, before:].to(x.dtype).contiguous()
    return d_x, d_columns.t().to(taps.dtype).contiguous(), d_state


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None
    x, taps, state = ctx.saved_tensors
    d_x, d_taps, d_state = _conv_backward(grad.contiguous(), x, taps, state)
    return d_x, d_taps, None if state is None else d_state


differentiate("causal_conv_silu", _backward, setup=_setup)


def causal_conv_silu(x: Tensor, taps: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """silu(y) and the last W-1 inputs, with y_t = sum_j taps[:, j] x_{t-(W-1)+j}.

    x [B, T, C] with T >= 1, taps [C, W]; state [B, W-1, C] is what came before x, zeros by default. The new
    state is a copy without a gradient.
    """
    out, after = _conv(x, taps, state)
    return out, after
