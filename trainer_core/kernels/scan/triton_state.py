"""Kernels around the potentials of the scan: sums of exponents, what a chunk adds, the pass over chunks.

One program owns each result and adds in a fixed order. Exponents, steps and potentials are float32; operands
of products are cast to DT. Exponents and steps stand as [B, H, chunks x Q], zero after the last token.
"""

from __future__ import annotations

import triton.language as tl

from trainer_core.kernels.compiler import kernel


@kernel()
def rows_of(
    x: tl.tensor, at: tl.tensor, T: tl.tensor, STRIDE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """Rows `at` of x as float32, zero after T rows and SIZE columns."""
    columns = tl.arange(0, BLOCK)
    where = x + at.to(tl.int64)[:, None] * STRIDE + columns[None, :]
    if SIZE == BLOCK:
        return tl.load(where, mask=(at < T)[:, None], other=0.0).to(tl.float32)
    return tl.load(where, mask=(at < T)[:, None] & (columns < SIZE)[None, :], other=0.0).to(tl.float32)


@kernel()
def matrix_of(
    x: tl.tensor, N: tl.constexpr, P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr
) -> tl.tensor:
    """Potentials [N, P] of one head, zero beyond."""
    n, p = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_P)
    where = x + n[:, None] * P + p[None, :]
    if N == BLOCK_N and P == BLOCK_P:
        return tl.load(where)
    return tl.load(where, mask=(n < N)[:, None] & (p < P)[None, :], other=0.0)


@kernel(any_value=("T", "chunks"))
def chunk_cumsum_kernel(
    dt: tl.tensor,
    A: tl.tensor,
    cum: tl.tensor,
    steps: tl.tensor,
    T: tl.tensor,
    chunks: tl.tensor,
    H: tl.constexpr,
    Q: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    """Sums of A dt from the start of each chunk, and dt, of HEADS heads of one chunk."""
    c, first, row = tl.program_id(0), tl.program_id(1) * HEADS, tl.program_id(2).to(tl.int64)
    h, t = first + tl.arange(0, HEADS), c * Q + tl.arange(0, Q)
    mask = (t < T)[:, None] & (h < H)[None, :]
    step = tl.load(dt + (row * T + t)[:, None] * H + h[None, :], mask=mask, other=0.0)
    rate = tl.load(A + h, mask=h < H, other=0.0)
    out = (row * H + h)[None, :] * (chunks * Q) + t[:, None]
    tl.store(cum + out, tl.cumsum(step * rate[None, :], 0), mask=(h < H)[None, :])
    tl.store(steps + out, step, mask=(h < H)[None, :])


@kernel(any_value=("T", "chunks", "B"))
def chunk_state_kernel(
    x: tl.tensor,
    u: tl.tensor,
    cum: tl.tensor,
    steps: tl.tensor,
    out: tl.tensor,
    T: tl.tensor,
    chunks: tl.tensor,
    B: tl.tensor,
    H: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    AFTER: tl.constexpr,
    DT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """sum_t weight_t x_t u_t^T of one chunk and head, out [chunks, B, H, N, P].

    AFTER: what the chunk adds to the potentials after it, x = b, weight = exp(cum_Q - cum_t) dt_t; otherwise
    what reading gives back to the potentials before it, x = r, u = the gradient of y, weight = exp(cum_t).
    """
    c, h, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    t = c * Q + tl.arange(0, Q)
    line = (row * H + h) * (chunks * Q) + t
    weight = tl.load(cum + line)
    if AFTER:
        last = tl.load(cum + (row * H + h) * (chunks * Q) + c * Q + Q - 1)
        weight = tl.exp(last - weight) * tl.load(steps + line)
    else:
        weight = tl.exp(weight)
    x_t = rows_of(x + (row * T * G + h // (H // G)) * N, t, T, G * N, N, BLOCK_N) * weight[:, None]
    u_t = rows_of(u + (row * T * H + h) * P, t, T, H * P, P, BLOCK_P)
    sums = tl.dot(tl.trans(x_t.to(DT)), u_t.to(DT), input_precision=PRECISION)
    n, p = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_P)
    where = out + ((c * B + row) * H + h) * (N * P) + n[:, None] * P + p[None, :]
    if N == BLOCK_N and P == BLOCK_P:
        tl.store(where, sums)
    else:
        tl.store(where, sums, mask=(n < N)[:, None] & (p < P)[None, :])


@kernel(any_value=("chunks", "BH"))
def state_pass_kernel(
    V: tl.tensor,
    cum: tl.tensor,
    chunks: tl.tensor,
    BH: tl.tensor,
    SIZE: tl.constexpr,
    Q: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """V [chunks + 1, B H, SIZE]: the first is there, the others hold what their chunk adds."""
    row, at = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = V + row * SIZE + at
    v = tl.load(here, mask=at < SIZE, other=0.0)
    for c in range(chunks):
        whole = tl.exp(tl.load(cum + (row * chunks + c) * Q + Q - 1))
        here += BH.to(tl.int64) * SIZE
        v = v * whole + tl.load(here, mask=at < SIZE, other=0.0)
        tl.store(here, v, mask=at < SIZE)


@kernel(any_value=("chunks", "BH"))
def state_pass_backward_kernel(
    d_V: tl.tensor,
    V: tl.tensor,
    cum: tl.tensor,
    kept: tl.tensor,
    chunks: tl.tensor,
    BH: tl.tensor,
    SIZE: tl.constexpr,
    Q: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """d_V: the last is there, the others hold what their chunk's reads give back.

    kept [blocks, B H, chunks]: this block's part of the gradient of cum_Q by what outlives the chunk.
    """
    row, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    here = (chunks * BH.to(tl.int64) + row) * SIZE + at
    d = tl.load(d_V + here, mask=at < SIZE, other=0.0)
    for i in range(chunks):
        c = chunks - 1 - i
        here -= BH.to(tl.int64) * SIZE
        d = d * tl.exp(tl.load(cum + (row * chunks + c) * Q + Q - 1))
        product = d * tl.load(V + here, mask=at < SIZE, other=0.0)
        tl.store(kept + (block * BH.to(tl.int64) + row) * chunks + c, tl.sum(product))
        d += tl.load(d_V + here, mask=at < SIZE, other=0.0)
        tl.store(d_V + here, d, mask=at < SIZE)
