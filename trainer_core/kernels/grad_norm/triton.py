"""The gradient norm on a GPU: one pass over G, two small kernels; no atomics, every sum in a fixed order.

Sums within a block are float32 trees, everything above them is float64. No minimum or maximum takes part in
the judgement: those may drop a NaN.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer_core.kernels.compiler import FP_FUSION, kernel
from trainer_core.kernels.grad_norm.reference import BLOCK, CLIP_EPSILON, NormState, Segments

ROWS = 8
"""Blocks of a program: one for each warp, so that a sum never leaves its warp."""

CHUNK = 4096
"""Blocks that a program of the label sums adds at a time."""

POINTERS = ("max_norm", "betas", "products", "counters", "norms", "ok", "clip")
"""Arguments that point to a few numbers somewhere in a block of them."""


@kernel(any_alignment=("squares",))
def block_squares_kernel(
    G: tl.tensor, squares: tl.tensor, num_blocks: tl.tensor, BLOCK: tl.constexpr, ROWS: tl.constexpr
) -> None:
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    g = tl.load(G + at, mask=(rows < num_blocks)[:, None], other=0.0)
    tl.store(squares + rows, tl.sum(g * g, 1).to(tl.float64), mask=rows < num_blocks)


@kernel()
def label_squares_kernel(
    squares: tl.tensor, starts: tl.tensor, bounds: tl.tensor, sums: tl.tensor, CHUNK: tl.constexpr
) -> None:
    """`bounds` holds first block and one past the last of each segment, label by label; `starts` where."""
    label = tl.program_id(0)
    total = tl.zeros([CHUNK], tl.float64)
    for segment in range(tl.load(starts + label), tl.load(starts + label + 1)):
        first, end = tl.load(bounds + 2 * segment), tl.load(bounds + 2 * segment + 1)
        for chunk in range(first, end, CHUNK):
            at = chunk + tl.arange(0, CHUNK)
            total += tl.load(squares + at, mask=at < end, other=0.0)
    tl.store(sums + label, tl.sum(total, 0))


@kernel(any_alignment=POINTERS)
def finish_kernel(
    sums: tl.tensor,
    max_norm: tl.tensor,
    betas: tl.tensor,
    products: tl.tensor,
    counters: tl.tensor,
    norms: tl.tensor,
    ok: tl.tensor,
    clip: tl.tensor,
    num_labels: tl.tensor,
    EPSILON: tl.constexpr,
    LABELS: tl.constexpr,
) -> None:
    label = tl.arange(0, LABELS)
    squares = tl.load(sums + label, mask=label < num_labels, other=0.0)
    tl.store(norms + 1 + label, tl.sqrt(squares), mask=label < num_labels)
    norm = tl.sqrt(tl.sum(squares, 0))
    tl.store(norms, norm)
    finite = tl.where(norm < float("inf"), 1, 0)
    tl.store(ok, finite > 0)
    ratio = tl.load(max_norm) / (norm + EPSILON)
    tl.store(clip, tl.where(ratio > 1, 1.0, ratio))
    pair = tl.arange(0, 2)
    old = tl.load(products + pair)
    tl.store(products + pair, tl.where(finite > 0, old * tl.load(betas + pair), old))
    tl.store(counters, tl.load(counters) + finite)
    tl.store(counters + 1, tl.load(counters + 1) + 1 - finite)
    tl.store(counters + 2, tl.where(finite > 0, 0, tl.load(counters + 2) + 1))


class TritonGradNorm:
    """The specification for one layout; what it needs on the device is made here, before any capture."""

    def __init__(self, segments: Segments, device: torch.device, *, chunk: int = CHUNK) -> None:
        order = sorted(range(len(segments.labels)), key=segments.labels.__getitem__)
        bounds = torch.tensor([segments.bounds[i] for i in order], dtype=torch.int32)
        self._bounds = bounds.to(device)
        self._num_labels = segments.num_labels
        self._num_blocks = max(end for _, end in segments.bounds)
        starts = [sum(label < i for label in segments.labels) for i in range(self._num_labels + 1)]
        self._starts = torch.tensor(starts, dtype=torch.int32).to(device)
        self._sums = torch.zeros(self._num_labels, dtype=torch.float64, device=device)
        self._chunk = chunk

    def squares(self, G: Tensor, blocks: Tensor) -> None:
        """One pass over G."""
        num = blocks.numel()
        assert G.dtype == torch.float32 and G.numel() == num * BLOCK, (G.dtype, G.numel(), num)
        block_squares_kernel[(triton.cdiv(num, ROWS),)](
            G, blocks, num, BLOCK=BLOCK, ROWS=ROWS, num_warps=ROWS, enable_fp_fusion=FP_FUSION
        )

    def finish(self, blocks: Tensor, s: NormState) -> None:
        """Sums by label, then one program for all that follows."""
        assert blocks.numel() >= self._num_blocks, "gradients of another layout"
        label_squares_kernel[(self._num_labels,)](
            blocks,
            self._starts,
            self._bounds,
            self._sums,
            CHUNK=self._chunk,
            num_warps=8,
            enable_fp_fusion=FP_FUSION,
        )
        finish_kernel[(1,)](
            self._sums,
            s.max_norm,
            s.betas,
            s.products,
            s.counters,
            s.norms,
            s.ok,
            s.clip,
            self._num_labels,
            EPSILON=CLIP_EPSILON,
            LABELS=triton.next_power_of_2(self._num_labels),
            num_warps=4,
            enable_fp_fusion=FP_FUSION,
        )
