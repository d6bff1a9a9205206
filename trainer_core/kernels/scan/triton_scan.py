"""Kernels of a chunk of the scan: the outputs forward, and the gradients of u and dt, of b and r.

A program owns the whole result it writes; heads of a group are added in their order. The chunk's matrix of
exponents is made in registers, its products with operands cast to DT.
"""

from __future__ import annotations

import triton.language as tl

from trainer_core.kernels.compiler import kernel
from trainer_core.kernels.rounding import to_bfloat16
from trainer_core.kernels.scan.triton_state import matrix_of, rows_of


@kernel()
def _store_rows(
    out: tl.tensor,
    value: tl.tensor,
    at: tl.tensor,
    T: tl.tensor,
    STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    columns = tl.arange(0, BLOCK)
    where = out + at.to(tl.int64)[:, None] * STRIDE + columns[None, :]
    mask = (at < T)[:, None]
    if SIZE != BLOCK:
        mask = mask & (columns < SIZE)[None, :]
    if out.dtype.element_ty == tl.bfloat16:
        tl.store(where, to_bfloat16(value), mask=mask)
    else:
        tl.store(where, value, mask=mask)


@kernel(any_value=("T", "chunks", "B"))
def chunk_scan_kernel(
    u: tl.tensor,
    b: tl.tensor,
    r: tl.tensor,
    cum: tl.tensor,
    steps: tl.tensor,
    V: tl.tensor,
    y: tl.tensor,
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
    DT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """y of one chunk and head, from the potentials V [chunks, B, H, N, P] before each chunk."""
    c, h, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = tl.arange(0, Q)
    t = c * Q + i
    line = (row * H + h) * (chunks * Q) + t
    exponent, step = tl.load(cum + line), tl.load(steps + line)
    group = (row * T * G + h // (H // G)) * N
    r_t = rows_of(r + group, t, T, G * N, N, BLOCK_N).to(DT)
    b_t = rows_of(b + group, t, T, G * N, N, BLOCK_N).to(DT)
    u_t = rows_of(u + (row * T * H + h) * P, t, T, H * P, P, BLOCK_P).to(DT)
    before = matrix_of(V + ((c * B + row) * H + h) * (N * P), N, P, BLOCK_N, BLOCK_P).to(DT)
    decay = tl.exp(tl.minimum(exponent[:, None] - exponent[None, :], 0.0)) * step[None, :]
    weights = tl.dot(r_t, tl.trans(b_t), input_precision=PRECISION) * decay
    weights = tl.where(i[:, None] >= i[None, :], weights, 0.0)
    out = tl.dot(r_t, before, input_precision=PRECISION) * tl.exp(exponent)[:, None]
    out += tl.dot(weights.to(DT), u_t, input_precision=PRECISION)
    _store_rows(y + (row * T * H + h) * P, out, t, T, H * P, P, BLOCK_P)


@kernel(any_value=("T", "chunks", "B"))
def chunk_scan_backward_kernel(
    g: tl.tensor,
    u: tl.tensor,
    b: tl.tensor,
    r: tl.tensor,
    A: tl.tensor,
    cum: tl.tensor,
    steps: tl.tensor,
    V: tl.tensor,
    d_V: tl.tensor,
    kept: tl.tensor,
    d_u: tl.tensor,
    d_steps: tl.tensor,
    d_A: tl.tensor,
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
    DT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Gradients of u, of dt [B, H, chunks x Q], and of A by this chunk [B, H, chunks].

    V stand before, d_V after each chunk; kept [B, H, chunks] is the gradient of cum_Q by what outlives the
    chunk. The gradient of A dt at t sums what passes it: pairs j < t <= i, reads i >= t, writes j < t.
    """
    c, h, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i = tl.arange(0, Q)
    t = c * Q + i
    start = (row * H + h) * (chunks * Q)
    exponent, step = tl.load(cum + start + t), tl.load(steps + start + t)
    last = tl.load(cum + start + c * Q + Q - 1)
    group, head = (row * T * G + h // (H // G)) * N, (row * T * H + h) * P
    matrix = ((c * B + row) * H + h) * (N * P)
    g_t = rows_of(g + head, t, T, H * P, P, BLOCK_P)
    r_t = rows_of(r + group, t, T, G * N, N, BLOCK_N).to(DT)
    before = matrix_of(V + matrix, N, P, BLOCK_N, BLOCK_P).to(DT)
    reads = tl.dot(r_t, before, input_precision=PRECISION)
    d_reads = tl.sum(reads * g_t, 1) * tl.exp(exponent)

    b_t = rows_of(b + group, t, T, G * N, N, BLOCK_N).to(DT)
    after = matrix_of(d_V + matrix, N, P, BLOCK_N, BLOCK_P).to(DT)
    d_w = tl.dot(b_t, after, input_precision=PRECISION) * tl.exp(last - exponent)[:, None]
    u_t = rows_of(u + head, t, T, H * P, P, BLOCK_P)
    d_writes = tl.sum(d_w * u_t, 1) * step

    decay = tl.exp(tl.minimum(exponent[:, None] - exponent[None, :], 0.0))
    weights = tl.dot(r_t, tl.trans(b_t), input_precision=PRECISION) * decay
    weights = tl.where(i[:, None] >= i[None, :], weights, 0.0)
    d_w += tl.dot(tl.trans(weights.to(DT)), g_t.to(DT), input_precision=PRECISION)
    d_pairs = tl.dot(g_t.to(DT), tl.trans(u_t.to(DT)), input_precision=PRECISION) * step[None, :] * weights

    passing = tl.cumsum(d_pairs, 0, reverse=True) + d_writes[None, :]
    d_log = tl.sum(tl.where(i[:, None] > i[None, :], passing, 0.0), 1)
    d_log += tl.cumsum(d_reads, 0, reverse=True) + tl.load(kept + (row * H + h) * chunks + c)
    tl.store(d_A + (row * H + h) * chunks + c, tl.sum(d_log * step))
    tl.store(d_steps + start + t, tl.sum(d_w * u_t, 1) + tl.load(A + h) * d_log)
    _store_rows(d_u + head, d_w * step[:, None], t, T, H * P, P, BLOCK_P)


@kernel(any_value=("T", "chunks", "B"))
def chunk_scan_groups_kernel(
    own: tl.tensor,
    other: tl.tensor,
    x: tl.tensor,
    cum: tl.tensor,
    steps: tl.tensor,
    V: tl.tensor,
    out: tl.tensor,
    T: tl.tensor,
    chunks: tl.tensor,
    B: tl.tensor,
    H: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    READS: tl.constexpr,
    DT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """The gradient of r (READS) or b of ROWS tokens of a chunk by HEADS heads, out [H / HEADS, B, T, N].

    Of r: own = the gradient of y, other = u, x = b, V before each chunk. Of b: own = u, other = the gradient
    of y, x = r, V = the potentials' gradient after each chunk. Both [chunks, B, H, N, P].
    """
    part, first, row = tl.program_id(1), tl.program_id(0) * ROWS, tl.program_id(2).to(tl.int64)
    c = first // Q
    i, j = first + tl.arange(0, ROWS), c * Q + tl.arange(0, Q)
    reached = i[:, None] >= j[None, :] if READS else j[None, :] >= i[:, None]
    sums = tl.zeros((ROWS, BLOCK_N), tl.float32)
    pairs = tl.zeros((ROWS, Q), tl.float32)
    for k in range(HEADS):
        h = part * HEADS + k
        start = (row * H + h) * (chunks * Q)
        cum_i, cum_j = tl.load(cum + start + i), tl.load(cum + start + j)
        own_t = rows_of(own + (row * T * H + h) * P, i, T, H * P, P, BLOCK_P).to(DT)
        other_t = rows_of(other + (row * T * H + h) * P, j, T, H * P, P, BLOCK_P).to(DT)
        matrix = matrix_of(V + ((c * B + row) * H + h) * (N * P), N, P, BLOCK_N, BLOCK_P).to(DT)
        direct = tl.dot(own_t, tl.trans(matrix), input_precision=PRECISION)
        product = tl.dot(own_t, tl.trans(other_t), input_precision=PRECISION)
        if READS:
            sums += direct * tl.exp(cum_i)[:, None]
            step = tl.load(steps + start + j)
            pairs += product * (tl.exp(tl.minimum(cum_i[:, None] - cum_j[None, :], 0.0)) * step[None, :])
        else:
            step = tl.load(steps + start + i)
            last = tl.load(cum + start + c * Q + Q - 1)
            sums += direct * (tl.exp(last - cum_i) * step)[:, None]
            pairs += product * (tl.exp(tl.minimum(cum_j[None, :] - cum_i[:, None], 0.0)) * step[:, None])
    pairs = tl.where(reached, pairs, 0.0)
    group = part * HEADS // (H // G)
    x_t = rows_of(x + (row * T * G + group) * N, j, T, G * N, N, BLOCK_N).to(DT)
    sums += tl.dot(pairs.to(DT), x_t, input_precision=PRECISION)
    _store_rows(out + (part * B + row) * T * N, sums, i, T, N, N, BLOCK_N)
