"""Named sizes, states and scalars that the tests of the update's kernels share."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from trainer_core.kernels.adamw import Buffers, Coefficients
from trainer_core.kernels.grad_norm import BLOCK, GradNorm, NormState, Segments

SIZES = {
    "one": 1,
    "block-1": BLOCK - 1,
    "block": BLOCK,
    "block+1": BLOCK + 1,
    "odd": 3 * BLOCK + 17,
    "many": 37 * BLOCK,
}
"""Elements of a buffer by name."""

PLANTED = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
"""What a broken gradient may hold."""


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def buffers(n: int, *, average: bool = True, copy: bool = True, seed: int = 0) -> Buffers:
    """A state in the middle of training."""
    g = torch.Generator().manual_seed(seed)
    P, G, M = torch.randn(3, n, generator=g).unbind()
    V = torch.rand(n, generator=g)
    E = torch.randn(n, generator=g) if average else None
    return Buffers(P=P.clone(), G=G * 10, M=M.clone(), V=V, E=E, W=P.to(torch.bfloat16) if copy else None)


def clone(b: Buffers) -> Buffers:
    held = {f.name: getattr(b, f.name) for f in fields(b)}
    return replace(b, **{name: t.clone() for name, t in held.items() if t is not None})


def state(b: Buffers) -> dict[str, Tensor]:
    """What a skipped update leaves alone."""
    held = {name: getattr(b, name) for name in "PMVEW"}
    return {name: t for name, t in held.items() if t is not None}


def part(b: Buffers, first: int, end: int) -> Buffers:
    """The range of one group."""
    held = {f.name: getattr(b, f.name) for f in fields(b)}
    return replace(b, **{name: t[first:end] for name, t in held.items() if t is not None})


def coefficients(*, ok: bool = True, ema_weight: float = 0.01, lr: float = 3e-3) -> Coefficients:
    block = doubles(lr, 0.1, 0.9, 0.95, 1e-8, 0.37, ema_weight)
    return Coefficients(
        lr=block[0],
        weight_decay=block[1],
        beta1=block[2],
        beta2=block[3],
        eps=block[4],
        clip=block[5],
        products=doubles(0.9**3, 0.95**3),
        applied=torch.tensor(3),
        ok=torch.tensor([ok])[0],
        ema_weight=block[6],
    )


def norm_state(segments: Segments, max_norm: float = 1.5) -> NormState:
    """The state after two applied updates and one skipped one."""
    block = doubles(max_norm, 0.9, 0.95)
    return NormState(
        max_norm=block[0],
        betas=block[1:],
        norms=torch.zeros(1 + segments.num_labels, dtype=torch.float64),
        ok=torch.ones(1, dtype=torch.bool),
        clip=doubles(0.0),
        products=doubles(0.9**2, 0.95**2),
        counters=torch.tensor([2, 1, 1]),
    )


def whole(norm: GradNorm, G: Tensor, s: NormState) -> None:
    """Both halves of the norm on one rank."""
    blocks = torch.full((G.numel() // BLOCK,), torch.nan, dtype=torch.float64)
    norm.squares(G, blocks)
    norm.finish(blocks, s)


def close(got: Tensor, wanted: Tensor, bar: float = 1e-7) -> bool:
    """Whether no element is off by more than `bar` of the largest one (of 1, where all are smaller)."""
    scale = max(1.0, wanted.double().abs().max().item())
    return (got.double() - wanted.double()).abs().max().item() <= bar * scale
