"""The causal depthwise convolution on torch's operators, by tiles that stay in a CPU's cache in all steps.

Token t sees the tokens t - b for each b < W, its backs. A tile is some rows, or a piece of one. What tiles
read and write is cut out of the whole for all of them at once: a call costs as much as thousands of values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer_core.kernels.target import worth_doing

TILE = 1 << 17
"""Values of a tile."""


def _cut(x: Tensor, W: int, *, first: int = 0, last: int = 0) -> list[Tensor]:
    """x [B, T, C] by tiles; without its first or last tokens, which each row's first tile then lacks."""
    B, T, C = x.shape
    tokens, rows = min(max(W, TILE // C), T), max(1, TILE // (T * C))
    groups = x[:, first : T - last].chunk(-(-B // rows))
    if tokens == T:
        return list(groups)
    bounds = [end - first - last for end in range(tokens, T, tokens)]
    return [tile for group in groups for tile in group.tensor_split(bounds, dim=1)]


def _tiles(x: Tensor, W: int, backs: int, *, seen: bool) -> list[tuple[Tensor, ...]]:
    """Of each tile of x [B, T, C], by back: tokens that see so far back, or with `seen` those they see."""
    cuts = (_cut(x, W, last=b) if seen else _cut(x, W, first=b) for b in range(backs))
    return list(zip(*cuts, strict=True))


def _taps_by_back(x: Tensor, taps: Tensor) -> tuple[Tensor, ...]:
    """Of taps [W, C] those for which x [B, T, C] has a token that sees so far back."""
    return taps.flip(0)[: x.shape[1]].unbind()


def convolve(x: Tensor, taps: Tensor) -> Tensor:
    """silu of the convolution of x [B, T, C] with taps [W, C], of one dtype."""
    by_back, y = _taps_by_back(x, taps), x.new_empty(x.shape)
    W, backs = len(taps), len(by_back)
    tiles = zip(_tiles(x, W, backs, seen=True), _tiles(y, W, backs, seen=False), strict=True)
    for xs, ys in worth_doing(list(tiles), x):
        _convolve(xs, by_back, ys)
        F.silu(ys[0], inplace=True)
    return y


def _convolve(xs: Sequence[Tensor], by_back: Sequence[Tensor], ys: Sequence[Tensor]) -> None:
    """Fills ys[0], a tile whose tokens ys see xs."""
    torch.mul(xs[0], by_back[0], out=ys[0])
    for x, tap, y in zip(xs[1:], by_back[1:], ys[1:], strict=True):
        y.addcmul_(x, tap)


def convolve_backward(grad: Tensor, x: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and taps from that of the result, which may be narrower."""
    by_back, d_x = _taps_by_back(x, taps), x.new_empty(x.shape)
    W, backs = len(taps), len(by_back)
    sums: list[Tensor] = []
    seen, d_seen = (_tiles(t, W, backs, seen=True) for t in (x, d_x))
    for g, xs, d_xs in worth_doing(list(zip(_cut(grad, W), seen, d_seen, strict=True)), x):
        y = x.new_empty(g.shape)
        ys = [y.narrow(1, y.shape[1] - part.shape[1], part.shape[1]) for part in xs]
        _convolve(xs, by_back, ys)
        torch.ops.aten.silu_backward.grad_input(g.to(y.dtype), y, grad_input=y)
        sums.extend((d_y * part).sum((0, 1)) for d_y, part in zip(ys, xs, strict=True))
        torch.mul(y, by_back[0], out=d_xs[0])
        for d_y, tap, d_part in zip(ys[1:], by_back[1:], d_xs[1:], strict=True):
            d_part.addcmul_(d_y, tap)
    d_taps = torch.zeros_like(taps)
    d_taps[W - backs :] = torch.stack(sums).view(-1, backs, taps.shape[1]).sum(0).flip(0)
    return d_x, d_taps
