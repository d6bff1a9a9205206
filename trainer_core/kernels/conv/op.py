"""The causal depthwise convolution with its activation as an operator with an explicit backward pass.

It reads slices of something wider without a copy. On a CPU an exponential costs as much as ten sums, so the
forward pass keeps the sigmoid; a GPU, bound by memory, and narrow inputs convolve again instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.target import launchable, target
from trainer_core.kernels.tensors import wide, wide_dtype

CHUNK = 256
"""Tokens whose products with the gradient are summed at a time, in the cache of a CPU."""


def _launchable(width: int, *tensors: Tensor | None) -> bool:
    """Whether our kernels for a GPU take these."""
    return width == 4 and launchable(*(t for t in tensors if t is not None))


def _convolve(x: Tensor, taps: Tensor, state: Tensor | None) -> Tensor:
    """y [B, T, C]; one pass for each of the rows of `taps` [W, C]."""
    T, last = x.shape[1], taps.shape[0] - 1
    y = torch.mul(x, taps[last])
    for back in range(1, min(last, T - 1) + 1):
        y[:, back:].addcmul_(x[:, :-back], taps[last - back])
    if state is not None:
        for back in range(1, last + 1):
            n = min(back, T)
            y[:, :n].addcmul_(state[:, last - back : last - back + n], taps[last - back])
    return y


def _new_state(x: Tensor, width: int, state: Tensor | None) -> Tensor:
    """The last W-1 inputs."""
    B, T, C = x.shape
    if width - 1 <= T:
        return x[:, T - (width - 1) :].clone()
    before = x.new_zeros(B, width - 1, C) if state is None else state.to(x.dtype)
    return torch.cat((before[:, T:], x), dim=1)


def _fake(x: Tensor, taps: Tensor, state: Tensor | None, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    B, T, C = x.shape
    kept = x.new_empty(x.shape if keep else (0,), dtype=wide_dtype(x))
    return x.new_empty(B, T, C), x.new_empty(B, taps.shape[1] - 1, C), kept


@operator("causal_conv_silu", fake=_fake)
def _conv(x: Tensor, taps: Tensor, state: Tensor | None, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the new state and, if it is kept, the sigmoid."""
    after = _new_state(x, taps.shape[1], state)
    if _launchable(taps.shape[1], x, taps, state):
        from trainer_core.kernels.conv.triton import conv_triton

        return conv_triton(x, taps, state), after, x.new_empty(0, dtype=torch.float32)
    widened = wide(x)
    y = _convolve(
        widened, taps.to(widened.dtype).t().contiguous(), None if state is None else state.to(widened.dtype)
    )
    if not keep:
        return F.silu(y, inplace=True).to(x.dtype).contiguous(), after, widened.new_empty(0)
    sigmoid = torch.sigmoid(y)
    return y.mul_(sigmoid).contiguous(), after, sigmoid.contiguous()


def _taps_gradient(d_y: Tensor, x: Tensor, state: Tensor | None, width: int) -> Tensor:
    """[C, W]: products of d_y with what each tap saw, summed over tokens and rows in a fixed order."""
    B, T, C = x.shape
    sums = []
    for back in range(width - 1, -1, -1):
        total = d_y.new_zeros(min(CHUNK, T), C)
        for row in range(B):
            for start in range(back, T, CHUNK):
                end = min(start + CHUNK, T)
                total[: end - start].addcmul_(d_y[row, start:end], x[row, start - back : end - back])
            if state is not None and back:
                n = min(back, T)
                total[:n].addcmul_(d_y[row, :n], state[row, width - 1 - back : width - 1 - back + n])
        sums.append(total.sum(0))
    return torch.stack(sums, dim=1)


def _spread(d_y: Tensor, taps: Tensor) -> Tensor:
    """The gradient of x: the convolution from the other side."""
    T, last = d_y.shape[1], taps.shape[0] - 1
    d_x = torch.mul(d_y, taps[last])
    for back in range(1, min(last, T - 1) + 1):
        d_x[:, :-back].addcmul_(d_y[:, back:], taps[last - back])
    return d_x


def _state_gradient(d_y: Tensor, taps: Tensor) -> Tensor:
    """The same for what came before x."""
    B, T, C = d_y.shape
    last = taps.shape[0] - 1
    d_state = d_y.new_zeros(B, last, C)
    for back in range(1, last + 1):
        n = min(back, T)
        d_state[:, last - back : last - back + n].addcmul_(d_y[:, :n], taps[last - back])
    return d_state


def _fake_backward(
    grad: Tensor, x: Tensor, taps: Tensor, state: Tensor | None, out: Tensor, sigmoid: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    B, _, C = x.shape
    d_state = x.new_empty(B, taps.shape[1] - 1 if state is not None else 0, C)
    return x.new_empty(x.shape), torch.empty_like(taps), d_state


@operator("causal_conv_silu_backward", fake=_fake_backward)
def _conv_backward(
    grad: Tensor, x: Tensor, taps: Tensor, state: Tensor | None, out: Tensor, sigmoid: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, taps and state (of no tokens without one); `out` is read if `sigmoid` was kept."""
    if _launchable(taps.shape[1], grad, x, taps, state):
        from trainer_core.kernels.conv.triton import conv_backward_triton

        d_x, d_taps, d_state = conv_backward_triton(grad, x, taps, state)
        return d_x, d_taps.to(taps.dtype), d_state
    widened = wide(x)
    columns = taps.to(widened.dtype).t().contiguous()
    before = None if state is None else state.to(widened.dtype)
    if sigmoid.numel():  # silu(y)' = sigmoid + silu(y) (1 - sigmoid)
        d_y = torch.addcmul(sigmoid, out, 1 - sigmoid).mul_(grad)
    else:
        y = _convolve(widened, columns, before)
        d_y = torch.ops.aten.silu_backward.grad_input(grad.to(widened.dtype), y, grad_input=y)
    d_taps = _taps_gradient(d_y, widened, before, taps.shape[1])
    d_state = d_y[:, :0] if state is None else _state_gradient(d_y, columns)
    d_x = _spread(d_y, columns)
    return d_x.to(x.dtype).contiguous(), d_taps.to(taps.dtype), d_state.to(x.dtype).contiguous()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, taps, state, _ = inputs
    out, after, sigmoid = output
    ctx.mark_non_differentiable(after, sigmoid)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, taps, state, out if sigmoid.numel() else sigmoid, sigmoid)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    x, taps, state, out, sigmoid = ctx.saved_tensors
    d_x, d_taps, d_state = _conv_backward(grad.contiguous(), x, taps, state, out, sigmoid)
    return d_x, d_taps, None if state is None else d_state, None


differentiate("causal_conv_silu", _backward, setup=_setup)


def causal_conv_silu(x: Tensor, taps: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """silu(y) and the last W-1 inputs, with y_t = sum_j taps[:, j] x_{t-(W-1)+j}.

    x [B, T, C] with T >= 1, taps [C, W]; state [B, W-1, C] is what came before x, zeros by default. The new
    state is a copy without a gradient.
    """
    keep = torch.is_grad_enabled() and target(x) == "cpu" and x.dtype in (torch.float32, torch.float64)
    out, after, _ = _conv(x, taps, state, keep)
    return out, after
