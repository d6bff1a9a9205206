"""The update of 44M parameters on a CPU, with clip and moving average, against torch's own optimizers.

    python -m benchmarks.update

Ours: norm, clip, AdamW, average and zeroing of the gradients on flat buffers. Theirs: clip_grad_norm_, AdamW
(foreach, and fused, its fastest on a CPU) and an average by _foreach_lerp_ over the tensors of a model; their
gradients are not zeroed, since theirs may be dropped. One thread. The bar is a time at 50 GB/s; memory that
is slower in the same rounds, because others use it, moves the bar by as much: a probe reads and writes the
same five buffers. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.contest import contest, table
from trainer_core.kernels import adamw, grad_norm

MATRIX, NUM_MATRICES = (512, 1376), 62
GAIN, NUM_GAINS = 1024, 24
"""A model's tensors: 44M parameters, 24 of its 86 tensors small."""

BYTES = 44
"""Least traffic per parameter: norm 4, update 28, zeroing 4, average 8."""

BAR_MS, BAR_BANDWIDTH = 55.0, 50e9
NORM_BAR, NORM_ELEMENTS = 1e-6, 200_000_000
SLACK = 1.1
ROUNDS = 7


def main() -> int:
    """Print the comparison and both bars; 1 when one is missed."""
    torch.set_num_threads(1)
    buffers = _buffers()
    n, G = buffers[0].numel(), buffers[1]
    contenders: dict[str, Callable[[], object]] = {
        "ours": _ours(*buffers),
        "torch foreach": _theirs(fused=False),
        "torch fused": _theirs(fused=True),
        "probe": lambda: [t.mul_(1.0) for t in buffers],
    }
    best = contest(contenders, rounds=ROUNDS, before=lambda name: G.normal_() if name == "ours" else None)
    bandwidth = 8 * len(buffers) * n / best.pop("probe")
    rows = [
        (name, f"{s * 1e3:.1f}", f"{BYTES * n / s / 1e9:.1f}", f"{s / best['ours']:.2f}")
        for name, s in best.items()
    ]
    head = [f"update of {n / 1e6:.1f}M, clip, average", "CPU ms", "GB/s of 44 B", "ratio to ours"]
    print(table(head, rows))
    bar = BAR_MS * max(1.0, BAR_BANDWIDTH / bandwidth)
    print(f"memory {bandwidth / 1e9:.1f} GB/s: bar {bar:.1f} ms ({BAR_MS:.0f} at 50 GB/s)")
    error = _norm_error()
    print(f"norm of {NORM_ELEMENTS / 1e6:.0f}M elements: relative error {error:.1e}, bar {NORM_BAR:.0e}")
    return int(best["ours"] * 1e3 > bar * SLACK or error > NORM_BAR)


def _tensors() -> list[Tensor]:
    shapes = [MATRIX] * NUM_MATRICES + [(GAIN,)] * NUM_GAINS
    return [torch.randn(shape) * 0.02 for shape in shapes]


def _buffers() -> list[Tensor]:
    """Parameters, gradients, moments and average, flat."""
    P = torch.cat([t.reshape(-1) for t in _tensors()])
    return [P, torch.randn_like(P), torch.zeros_like(P), torch.zeros_like(P), P.clone()]


def _ours(P: Tensor, G: Tensor, M: Tensor, V: Tensor, E: Tensor) -> Callable[[], None]:
    n, cut = P.numel(), NUM_MATRICES * MATRIX[0] * MATRIX[1]
    blocks = (cut // grad_norm.BLOCK, n // grad_norm.BLOCK)
    segments = grad_norm.Segments(bounds=((0, blocks[0]), blocks), labels=(0, 1))
    block = torch.tensor([1.0, 0.9, 0.95, 1e-8, 1e-3, 3e-4, 0.1, 3e-4, 0.0], dtype=torch.float64)
    state = grad_norm.NormState(
        max_norm=block[0],
        betas=block[1:3],
        norms=torch.zeros(3, dtype=torch.float64),
        ok=torch.ones(1, dtype=torch.bool),
        clip=torch.ones(1, dtype=torch.float64),
        products=torch.ones(2, dtype=torch.float64),
        counters=torch.zeros(3, dtype=torch.int64),
    )
    squares = torch.zeros(blocks[1], dtype=torch.float64)
    norm, update = grad_norm.choose(segments, P.device), adamw.choose(P.device)

    def run() -> None:
        norm.squares(G, squares)
        norm.finish(squares, state)
        for i, part in enumerate((slice(0, cut), slice(cut, n))):
            c = adamw.Coefficients(
                lr=block[5 + 2 * i],
                weight_decay=block[6 + 2 * i],
                beta1=block[1],
                beta2=block[2],
                eps=block[3],
                clip=state.clip[0],
                products=state.products,
                applied=state.counters[0],
                ok=state.ok[0],
                ema_weight=block[4],
            )
            update(adamw.Buffers(P=P[part], G=G[part], M=M[part], V=V[part], E=E[part]), c)

    return run


def _theirs(fused: bool) -> Callable[[], None]:
    params = [t.requires_grad_() for t in _tensors()]
    average = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in params if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=3e-4,
        betas=(0.9, 0.95),
        fused=fused,
        foreach=not fused,
    )

    def run() -> None:
        torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        optimizer.step()
        torch._foreach_lerp_(average, [p.detach() for p in params], 1e-3)

    return run


def _norm_error() -> float:
    blocks = -(-NORM_ELEMENTS // grad_norm.BLOCK)
    G = torch.randn(blocks * grad_norm.BLOCK, generator=torch.Generator().manual_seed(0))
    segments = grad_norm.Segments(bounds=((0, blocks),), labels=(0,))
    norm = grad_norm.reference.norms(grad_norm.reference.block_squares(G), segments)[0]
    exact = sum(float(part.double().square_().sum()) for part in G.split(1 << 22)) ** 0.5
    return abs(float(norm) / exact - 1)


if __name__ == "__main__":
    sys.exit(main())
