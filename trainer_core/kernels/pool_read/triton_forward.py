"""The pool read on a GPU, forward: a program per block of queries and head, which meets each event once.

Beside the products an event costs one sum (clock and write tag, put together once per block) and one
comparison of tokens. Events that come after a whole block lie outside of the loops' bounds and are never
loaded. Logits are powers of two inside; the clock of a block's first query is subtracted before anything is
added, and the log-sum-exp that is stored is that of the logits as the query's own clock sees them.
"""

from __future__ import annotations

import math

import triton.language as tl

from trainer_core.kernels.compiler import kernel
from trainer_core.kernels.rounding import to_bfloat16

LOG2E = tl.constexpr(math.log2(math.e))


@kernel()
def store(to: tl.tensor, value: tl.tensor, mask: tl.tensor) -> None:
    """Rounds once, to nearest, to the type that is pointed to."""
    if to.dtype.element_ty == tl.bfloat16:
        tl.store(to, to_bfloat16(value), mask=mask)
    else:
        tl.store(to, value, mask=mask)


@kernel()
def logits(
    q: tl.tensor,
    k: tl.tensor,
    event: tl.tensor,
    same: tl.tensor,
    match: tl.tensor,
    scale: tl.tensor,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """[M, N] of queries [M, D] and keys [N, D]; `event` [N] and `match` [M] are times LOG2E."""
    products = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    return products * (scale * LOG2E) + event[None, :] + tl.where(same, match[:, None], 0.0)


@kernel(any_value=("scale", "T", "S"))
def forward_kernel(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    clock: tl.tensor,
    log_write: tl.tensor,
    ids: tl.tensor,
    before: tl.tensor,
    match: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    scale: tl.tensor,
    T: tl.tensor,
    S: tl.tensor,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    DT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    head = tl.program_id(1).to(tl.int64)
    row, key_head = head // H, head // H * K + head % H // (H // K)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * M  # those with the most events first
    t = start + tl.arange(0, M)
    own = S - T + t
    columns = tl.arange(0, D)[None, :]
    k += key_head * S * D
    v += key_head * S * D
    clock += head * S
    log_write += key_head * S
    before += row * S

    queries = tl.load(q + head * T * D + t[:, None] * D + columns, mask=t[:, None] < T, other=0.0).to(DT)
    token = tl.load(ids + row * T + t, mask=t < T, other=-2)
    strength = tl.load(match + head * T + t, mask=t < T, other=0.0) * LOG2E
    zero = tl.load(clock + (S - T + start))
    best = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    read = tl.zeros((M, D), tl.float32)
    seen_by_all = (S - T + start) // N * N
    for LATE in tl.static_range(2):
        if LATE:
            first, last = seen_by_all, tl.minimum(S - T + start + M, S)
        else:
            first, last = 0, seen_by_all
        for at in range(first, last, N):
            s = at + tl.arange(0, N)
            keys = tl.load(k + s[:, None] * D + columns, mask=s[:, None] < S, other=0.0).to(DT)
            event = tl.load(clock + s, mask=s < S, other=0.0) - zero
            event = (event + tl.load(log_write + s, mask=s < S, other=0.0)) * LOG2E
            same = tl.load(before + s, mask=s < S, other=-1)[None, :] == token[:, None]
            x = logits(queries, keys, event, same, strength, scale, PRECISION)
            if LATE:
                x = tl.where((s[None, :] <= own[:, None]) & (s[None, :] < S), x, float("-inf"))
            higher = tl.maximum(best, tl.max(x, 1))
            weights = tl.exp2(x - higher[:, None])
            shrink = tl.exp2(best - higher)
            values = tl.load(v + s[:, None] * D + columns, mask=s[:, None] < S, other=0.0).to(DT)
            read = tl.dot(weights.to(DT), values, read * shrink[:, None], input_precision=PRECISION)
            total = total * shrink + tl.sum(weights, 1)
            best = higher
    store(out + head * T * D + t[:, None] * D + columns, read / total[:, None], t[:, None] < T)
    passed = tl.load(clock + own, mask=t < T, other=0.0) - zero
    tl.store(lse + head * T + t, (best + tl.log2(total)) / LOG2E - passed, mask=t < T)
