"""Sums by index on a GPU: a stable sort, then sums over chunks of the sorted rows, then over chunks' parts.

A chunk adds its rows one after the other. A segment inside a chunk is finished there; one that crosses into
other chunks leaves a part in each, and a second kernel adds these up: however many rows an id takes, no
program walks more than a chunk and the tiles of its parts. Every order is fixed, nothing is added atomically,
and all shapes follow from the number of rows alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer_core.kernels.compiler import FP_FUSION, kernel
from trainer_core.kernels.rounding import as_stored

MIN_CHUNK, MAX_CHUNKS = 32, 4096
"""Sorted rows of a chunk at least, and chunks at most: parts take two rows of memory each."""

BLOCK = 1024
"""Columns of a program at most."""

TILE = 8
"""Parts that the second kernel adds at a time."""

WARPS = 4
"""Warps of every program."""


@kernel(any_value=("n",))
def chunk_kernel(
    out: tl.tensor,
    rows: tl.tensor,
    ids: tl.tensor,
    order: tl.tensor,
    weights: tl.tensor,
    parts: tl.tensor,
    n: tl.tensor,
    d: tl.tensor,
    FANOUT: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`ids` [n] are sorted, `order` [n] is where they were; row order // FANOUT goes to it, by its weight.

    `parts` [chunks, 2, d] get what a chunk adds to a segment from before it, and to one that goes on.
    """
    chunk = tl.program_id(0)
    first = chunk * CHUNK
    end = tl.minimum(first + CHUNK, n)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < d
    before = tl.load(ids + tl.maximum(first - 1, 0))
    before = tl.where(first > 0, before, -1)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(first, end):
        source = tl.load(order + at)
        value = tl.load(rows + (source // FANOUT) * d + column, mask=mask, other=0.0).to(tl.float32)
        if weights is not None:
            value = value * tl.load(weights + source).to(tl.float32)
        total += value
        here = tl.load(ids + at)
        following = tl.load(ids + tl.minimum(at + 1, n - 1))
        following = tl.where(at + 1 < n, following, -1)
        goes_on = here == following
        if here == before:
            if (at + 1 == end) | (here != following):
                tl.store(parts + (2 * chunk).to(tl.int64) * d + column, total, mask=mask)
        else:
            if goes_on & (at + 1 == end):
                tl.store(parts + (2 * chunk + 1).to(tl.int64) * d + column, total, mask=mask)
            elif here != following:
                target = out + here.to(tl.int64) * d + column
                total += tl.load(target, mask=mask, other=0.0).to(tl.float32)
                tl.store(target, as_stored(total, out), mask=mask)
        total = tl.where(here != following, 0.0, total)


@kernel()
def parts_kernel(
    out: tl.tensor,
    ids: tl.tensor,
    ends: tl.tensor,
    parts: tl.tensor,
    d: tl.tensor,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Adds the parts of the segment that begins in a chunk and goes on after it.

    `ends` [chunks - 1] is where the segment at the end of each chunk ends.
    """
    chunk = tl.program_id(0)
    first, last = chunk * CHUNK, chunk * CHUNK + CHUNK - 1
    here = tl.load(ids + last)
    before = tl.where(first > 0, tl.load(ids + tl.maximum(first - 1, 0)), -1)
    if (here == tl.load(ids + last + 1)) & (here != before):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = column < d
        total = tl.zeros([TILE, BLOCK], tl.float32)
        end = (tl.load(ends + chunk).to(tl.int32) - 1) // CHUNK + 1
        for start in range(chunk + 1, end, TILE):
            row = start + tl.arange(0, TILE)
            at = (2 * row).to(tl.int64)[:, None] * d + column[None, :]
            total += tl.load(parts + at, mask=(row < end)[:, None] & mask[None, :], other=0.0)
        target = out + here.to(tl.int64) * d + column
        own = tl.load(parts + (2 * chunk + 1).to(tl.int64) * d + column, mask=mask, other=0.0)
        added = own + tl.sum(total, 0) + tl.load(target, mask=mask, other=0.0).to(tl.float32)
        tl.store(target, as_stored(added, out), mask=mask)


def chunk_size(n: int) -> int:
    """Sorted rows of a chunk when there are n."""
    least: int = triton.next_power_of_2(triton.cdiv(n, MAX_CHUNKS))
    return max(MIN_CHUNK, least)


def add_segments_triton(
    out: Tensor, rows: Tensor, index: Tensor, weights: Tensor | None, *, chunk: int | None = None
) -> None:
    """Adds rows [n, d] into those of out [size, d] that index names: [n], or [n, k] with weights [n, k]."""
    assert out.is_contiguous(), out.stride()
    n, d = index.numel(), rows.shape[1]
    if n == 0:
        return
    rows = rows.contiguous()
    ids, order = index.flatten().to(torch.int32).sort(stable=True)
    chunk = chunk_size(n) if chunk is None else chunk
    chunks = triton.cdiv(n, chunk)
    block = min(BLOCK, triton.next_power_of_2(d))
    columns = triton.cdiv(d, block)
    parts = torch.empty(chunks, 2, d, dtype=torch.float32, device=out.device)
    options = {"BLOCK": block, "CHUNK": chunk, "num_warps": WARPS, "enable_fp_fusion": FP_FUSION}
    fanout = n // rows.shape[0]
    flat = None if weights is None else weights.contiguous()
    chunk_kernel[(chunks, columns)](out, rows, ids, order, flat, parts, n, d, FANOUT=fanout, **options)
    if chunks > 1:
        ends = torch.searchsorted(ids, ids[chunk - 1 : (chunks - 1) * chunk : chunk].contiguous(), right=True)
        parts_kernel[(chunks - 1, columns)](out, ids, ends, parts, d, TILE=TILE, **options)


@kernel()
def weighted_rows_kernel(
    table: tl.tensor,
    slots: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    d: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < d
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(K):
        slot = tl.load(slots + row * K + j)
        value = tl.load(table + slot * d + column, mask=mask, other=0.0).to(tl.float32)
        total += value * tl.load(weights + row * K + j).to(tl.float32)
    tl.store(out + row * d + column, as_stored(total, out), mask=mask)


@kernel()
def weights_gradient_kernel(
    grad: tl.tensor,
    table: tl.tensor,
    slots: tl.tensor,
    out: tl.tensor,
    d: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    for j in range(K):
        slot = tl.load(slots + row * K + j)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, d, BLOCK):
            column = start + tl.arange(0, BLOCK)
            mask = column < d
            pull = tl.load(grad + row * d + column, mask=mask, other=0.0).to(tl.float32)
            total += pull * tl.load(table + slot * d + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + row * K + j, tl.sum(total, 0))


def weighted_rows_triton(table: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    """sum_j weights[:, j] table[slots[:, j]], [n, dv]."""
    (n, k), d = slots.shape, table.shape[1]
    out = table.new_empty(n, d)
    block = min(BLOCK, triton.next_power_of_2(d))
    weighted_rows_kernel[(n, triton.cdiv(d, block))](
        table, slots, weights, out, d, K=k, BLOCK=block, num_warps=WARPS, enable_fp_fusion=FP_FUSION
    )
    return out


def weights_gradient_triton(grad: Tensor, table: Tensor, slots: Tensor) -> Tensor:
    """grad[i] . table[slots[i, j]], [n, k] in float32."""
    (n, k), d = slots.shape, table.shape[1]
    out = torch.empty(n, k, dtype=torch.float32, device=grad.device)
    block = min(BLOCK, triton.next_power_of_2(d))
    weights_gradient_kernel[(n,)](
        grad.contiguous(), table, slots, out, d, K=k, BLOCK=block, num_warps=WARPS, enable_fp_fusion=FP_FUSION
    )
    return out
