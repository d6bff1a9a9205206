"""The causal depthwise convolution with its activation as an operator with an explicit backward pass.

It reads slices of something wider without a copy, and keeps nothing but its inputs: memory is slower than
convolving again. On a CPU the work goes by tiles that stay in the cache through all steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer_core.kernels.register import differentiate, operator
from trainer_core.kernels.target import launchable, worth_doing
from trainer_core.kernels.tensors import wide

TILE = 1 << 17
"""Values of some rows and tokens that go through all steps together, in the cache of a CPU."""


def _launchable(width: int, *tensors: Tensor | None) -> bool:
    """Whether our kernels for a GPU take these."""
    return width == 4 and launchable(*(t for t in tensors if t is not None))


def _tiles(x: Tensor) -> list[tuple[slice, slice]]:
    """Rows and tokens of x [B, T, C], those of a row in order."""
    B, T, C = x.shape
    tokens = min(max(1, TILE // C), T)
    rows = max(1, TILE // (T * C))
    tiles = [
        (slice(row, min(row + rows, B)), slice(start, min(start + tokens, T)))
        for row in range(0, B, rows)
        for start in range(0, T, tokens)
    ]
    return worth_doing(tiles, x)


def _seen(
    back: int, x: Tensor, state: Tensor | None, rows: slice, tokens: slice
) -> Iterator[tuple[slice, Tensor]]:
    """What a tile sees `back` tokens before: which tokens see it, and that part of x or of the state."""
    start, end = tokens.start, tokens.stop
    inside = min(max(start, back), end)
    if inside < end:
        yield slice(inside - start, end - start), x[rows, inside - back : end - back]
    if state is not None and start < inside:
        first = state.shape[1] + start - back
        yield slice(0, inside - start), state[rows, first : first + inside - start]


def _convolve(x: Tensor, taps: Tensor, state: Tensor | None, rows: slice, tokens: slice, y: Tensor) -> None:
    """Fills y, a tile of the convolution with `taps` [W, C]."""
    last = taps.shape[0] - 1
    torch.mul(x[rows, tokens], taps[last], out=y)
    for back in range(1, last + 1):
        for which, seen in _seen(back, x, state, rows, tokens):
            y[:, which].addcmul_(seen, taps[last - back])


def _new_state(x: Tensor, width: int, state: Tensor | None) -> Tensor:
    """The last W-1 inputs."""
    B, T, C = x.shape
    if width - 1 <= T:
        return x[:, T - (width - 1) :].clone()
    before = x.new_zeros(B, width - 1, C) if state is None else state.to(x.dtype)
    return torch.cat((before[:, T:], x), dim=1)


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
    widened = wide(x)
    columns = taps.to(widened.dtype).t().contiguous()
    before = None if state is None else state.to(widened.dtype)
    y = widened.new_empty(x.shape)
    for tile in _tiles(x):
        _convolve(widened, columns, before, *tile, y[tile])
        F.silu(y[tile], inplace=True)
    return y.to(x.dtype), after


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
    widened = wide(x)
    columns = taps.to(widened.dtype).t().contiguous()
    before = None if state is None else state.to(widened.dtype)
    last = columns.shape[0] - 1
    d_x, sums = torch.empty_like(widened, memory_format=torch.contiguous_format), torch.zeros_like(columns)
    d_before = None if before is None else torch.zeros_like(before)
    for rows, tokens in _tiles(x):
        tile = rows, tokens
        y = grad.new_empty(grad[tile].shape, dtype=widened.dtype)
        _convolve(widened, columns, before, rows, tokens, y)
        d_y = torch.ops.aten.silu_backward.grad_input(grad[tile].to(y.dtype), y, grad_input=y)
        torch.mul(d_y, columns[last], out=d_x[tile])
        for back in range(last + 1):
            for which, seen in _seen(back, widened, before, rows, tokens):
                sums[last - back].add_((d_y[:, which] * seen).sum((0, 1)))
            for which, d_seen in _seen(back, d_x, d_before, rows, tokens) if back else ():
                d_seen.addcmul_(d_y[:, which], columns[last - back])
    d_state = d_x[:, :0].clone() if d_before is None else d_before
    return d_x.to(x.dtype), sums.t().to(taps.dtype).contiguous(), d_state.to(x.dtype)


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
