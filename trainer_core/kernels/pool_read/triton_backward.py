"""The pool read on a GPU, backward: weights are computed again from the log-sum-exp, no atomics.

One kernel goes over blocks of queries and makes what belongs to a query, one over blocks of events and makes
what belongs to an event. The latter meets the query heads that share its key head one after the other, in
their order, so that every sum has one order.
"""

from __future__ import annotations

import triton.language as tl

from trainer_core.kernels.compiler import kernel
from trainer_core.kernels.pool_read.triton_forward import LOG2E, logits, store


@kernel(any_value=("scale", "T", "S"))
def queries_kernel(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    clock: tl.tensor,
    log_write: tl.tensor,
    ids: tl.tensor,
    before: tl.tensor,
    match: tl.tensor,
    grad: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    dq: tl.tensor,
    dmatch: tl.tensor,
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
    """Gradients of q and match, and `delta`, the mean of the weights' gradients that a softmax subtracts."""
    head = tl.program_id(1).to(tl.int64)
    row, key_head = head // H, head // H * K + head % H // (H // K)
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * M
    t = start + tl.arange(0, M)
    own = S - T + t
    columns = tl.arange(0, D)[None, :]
    tile = head * T * D + t[:, None] * D + columns
    k += key_head * S * D
    v += key_head * S * D
    clock += head * S
    log_write += key_head * S
    before += row * S

    queries = tl.load(q + tile, mask=t[:, None] < T, other=0.0).to(DT)
    token = tl.load(ids + row * T + t, mask=t < T, other=-2)
    strength = tl.load(match + head * T + t, mask=t < T, other=0.0) * LOG2E
    zero = tl.load(clock + (S - T + start))
    passed = tl.load(clock + own, mask=t < T, other=0.0) - zero
    norm = (tl.load(lse + head * T + t, mask=t < T, other=float("inf")) + passed) * LOG2E
    upper = tl.load(grad + tile, mask=t[:, None] < T, other=0.0)
    read = tl.load(out + tile, mask=t[:, None] < T, other=0.0)
    mean = tl.sum(upper.to(tl.float32) * read.to(tl.float32), 1)
    tl.store(delta + head * T + t, mean, mask=t < T)
    upper = upper.to(DT)
    made = tl.zeros((M, D), tl.float32)
    matched = tl.zeros((M,), tl.float32)
    seen_by_all = (S - T + start) // N * N
    for LATE in tl.static_range(2):
        if LATE:
            first, last = seen_by_all, tl.minimum(S - T + start + M, S)
        else:
            first, last = 0, seen_by_all
        for at in range(first, last, N):
            s = at + tl.arange(0, N)
            keys = tl.load(k + s[:, None] * D + columns, mask=s[:, None] < S, other=0.0).to(DT)
            values = tl.load(v + s[:, None] * D + columns, mask=s[:, None] < S, other=0.0).to(DT)
            event = tl.load(clock + s, mask=s < S, other=0.0) - zero
            event = (event + tl.load(log_write + s, mask=s < S, other=0.0)) * LOG2E
            same = tl.load(before + s, mask=s < S, other=-1)[None, :] == token[:, None]
            x = logits(queries, keys, event, same, strength, scale, PRECISION)
            if LATE:
                x = tl.where((s[None, :] <= own[:, None]) & (s[None, :] < S), x, float("-inf"))
            slope = tl.dot(upper, tl.trans(values), input_precision=PRECISION) - mean[:, None]
            slope *= tl.exp2(x - norm[:, None])
            made = tl.dot(slope.to(DT), keys, made, input_precision=PRECISION)
            matched += tl.sum(tl.where(same, slope, 0.0), 1)
    store(dq + tile, made * scale, t[:, None] < T)
    tl.store(dmatch + head * T + t, matched, mask=t < T)


@kernel(any_value=("scale", "T", "S"))
def events_kernel(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    clock: tl.tensor,
    log_write: tl.tensor,
    ids: tl.tensor,
    before: tl.tensor,
    match: tl.tensor,
    grad: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    dk: tl.tensor,
    dv: tl.tensor,
    dclock: tl.tensor,
    dlog_write: tl.tensor,
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
    """Gradients of k, v, clock and log_write. Products are transposed: [N, M] of events and queries."""
    key_head = tl.program_id(1).to(tl.int64)
    row = key_head // K
    start = tl.program_id(0) * N
    s = start + tl.arange(0, N)
    columns = tl.arange(0, D)[None, :]
    tile = key_head * S * D + s[:, None] * D + columns

    keys = tl.load(k + tile, mask=s[:, None] < S, other=0.0).to(DT)
    values = tl.load(v + tile, mask=s[:, None] < S, other=0.0).to(DT)
    written = tl.load(log_write + key_head * S + s, mask=s < S, other=0.0)
    follows = tl.load(before + row * S + s, mask=s < S, other=-1)
    made_k = tl.zeros((N, D), tl.float32)
    made_v = tl.zeros((N, D), tl.float32)
    made_written = tl.zeros((N,), tl.float32)
    earlier = S - T
    first_query = tl.maximum(start - earlier, 0) // M * M
    for member in range(H // K):
        head = row * H + key_head % K * (H // K) + member
        zero = tl.load(clock + head * S + start)
        event = (tl.load(clock + head * S + s, mask=s < S, other=0.0) - zero + written) * LOG2E
        made_clock = tl.zeros((N,), tl.float32)
        for at in range(first_query, T, M):
            t = at + tl.arange(0, M)
            met = head * T * D + t[:, None] * D + columns
            upper = tl.load(grad + met, mask=t[:, None] < T, other=0.0).to(DT)
            queries = tl.load(q + met, mask=t[:, None] < T, other=0.0).to(DT)
            token = tl.load(ids + row * T + t, mask=t < T, other=-2)
            strength = tl.load(match + head * T + t, mask=t < T, other=0.0) * LOG2E
            passed = tl.load(clock + head * S + earlier + t, mask=t < T, other=0.0) - zero
            norm = tl.load(lse + head * T + t, mask=t < T, other=float("inf"))
            mean = tl.load(delta + head * T + t, mask=t < T, other=0.0)
            same = follows[:, None] == token[None, :]
            x = tl.dot(keys, tl.trans(queries), input_precision=PRECISION) * (scale * LOG2E)
            x = x + event[:, None] + tl.where(same, strength[None, :], 0.0)
            x -= ((norm + passed) * LOG2E)[None, :]
            weights = tl.exp2(tl.where(s[:, None] <= (earlier + t)[None, :], x, float("-inf")))
            made_v = tl.dot(weights.to(DT), upper, made_v, input_precision=PRECISION)
            slope = tl.dot(values, tl.trans(upper), input_precision=PRECISION) - mean[None, :]
            slope *= weights
            made_k = tl.dot(slope.to(DT), queries, made_k, input_precision=PRECISION)
            made_clock += tl.sum(slope, 1)
        tl.store(dclock + head * S + s, made_clock, mask=s < S)
        made_written += made_clock
    store(dk + tile, made_k * scale, s[:, None] < S)
    store(dv + tile, made_v, s[:, None] < S)
    tl.store(dlog_write + key_head * S + s, made_written, mask=s < S)
