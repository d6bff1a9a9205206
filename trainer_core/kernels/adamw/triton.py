"""The update on a GPU: one launch per parameter group and one pass over memory, 46 bytes a parameter.

Each element of P, G, M, V (and E) is read once and written once; W is written. The scalars come from device
memory, so a captured launch sees new values. Where the update is skipped no element of the state is loaded
or stored: the length that the masks compare with is then 0, except for the zeroing of G.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trainer_core.kernels.adamw.reference import Buffers, Coefficients
from trainer_core.kernels.compiler import FP_FUSION, kernel
from trainer_core.kernels.rounding import to_bfloat16

BLOCK = 1024
"""Elements that a program has in registers at a time."""

WARPS = 8
"""Four elements, one 16-byte load of each buffer, per thread and block."""

MAX_STEPS = 16
"""Most blocks of one program: they share its float64 arithmetic on scalars, which is slow on some GPUs."""

PROGRAMS = 2048
"""Programs that a GPU should at least be given, where there are as many blocks."""

SCALARS = ("lr", "weight_decay", "beta1", "beta2", "eps", "clip", "products", "ok", "ema_weight")
"""Arguments that point to one or two numbers somewhere in a block of them."""


@kernel()
def _lerp(old: tl.tensor, new: tl.tensor, weight: tl.tensor) -> tl.tensor:
    """torch.lerp, which starts from the nearer end."""
    change = new - old
    return tl.where(weight < 0.5, old + weight * change, new - change * (1 - weight))


@kernel(any_value=("steps",), any_alignment=SCALARS)
def adamw_kernel(
    P: tl.tensor,
    G: tl.tensor,
    M: tl.tensor,
    V: tl.tensor,
    E: tl.tensor,
    W: tl.tensor,
    lr: tl.tensor,
    weight_decay: tl.tensor,
    beta1: tl.tensor,
    beta2: tl.tensor,
    eps: tl.tensor,
    clip: tl.tensor,
    products: tl.tensor,
    ok: tl.tensor,
    ema_weight: tl.tensor,
    n: tl.tensor,
    steps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    rate = tl.load(lr)
    keep = (1 - rate * tl.load(weight_decay)).to(tl.float32)
    weight1 = (1 - tl.load(beta1)).to(tl.float32)
    decay2 = tl.load(beta2)
    keep2, weight2 = decay2.to(tl.float32), (1 - decay2).to(tl.float32)
    step_size = (rate / (1 - tl.load(products))).to(tl.float32)
    root = tl.sqrt(1 - tl.load(products + 1)).to(tl.float32)
    epsilon, factor = tl.load(eps).to(tl.float32), tl.load(clip).to(tl.float32)
    live = tl.where(tl.load(ok).to(tl.int32) > 0, n, 0)
    first = tl.program_id(0).to(tl.int64) * steps
    for step in range(steps):
        at = (first + step) * BLOCK + tl.arange(0, BLOCK)
        on = at < live
        g = tl.load(G + at, mask=on, other=0.0) * factor
        m = _lerp(tl.load(M + at, mask=on, other=0.0), g, weight1)
        v = tl.load(V + at, mask=on, other=0.0) * keep2 + g * g * weight2
        denominator = tl.div_rn(tl.sqrt_rn(v), root) + epsilon
        p = tl.load(P + at, mask=on, other=0.0) * keep - tl.div_rn(m, denominator) * step_size
        tl.store(P + at, p, mask=on)
        tl.store(M + at, m, mask=on)
        tl.store(V + at, v, mask=on)
        if E is not None:
            share = tl.load(ema_weight).to(tl.float32)
            mixed = _lerp(tl.load(E + at, mask=on, other=0.0), p, share)
            tl.store(E + at, tl.where(share < 1, mixed, p), mask=on)
        if W is not None:
            tl.store(W + at, to_bfloat16(p), mask=on)
        tl.store(G + at, tl.zeros([BLOCK], tl.float32), mask=at < n)


def update_triton(b: Buffers, c: Coefficients, *, block: int = BLOCK, programs: int = PROGRAMS) -> None:
    """The specification in one launch; float32 state, bfloat16 copy."""
    assert b.P.dtype == torch.float32 and (b.W is None or b.W.dtype == torch.bfloat16), "dtype of the state"
    assert (b.E is None) or (c.ema_weight is not None), "a moving average without its weight"
    n = b.P.numel()
    blocks = triton.cdiv(n, block)
    steps = max(1, min(MAX_STEPS, blocks // programs))
    adamw_kernel[(triton.cdiv(blocks, steps),)](
        b.P,
        b.G,
        b.M,
        b.V,
        b.E,
        b.W,
        c.lr,
        c.weight_decay,
        c.beta1,
        c.beta2,
        c.eps,
        c.clip,
        c.products,
        c.ok,
        c.ema_weight,
        n,
        steps,
        BLOCK=block,
        num_warps=WARPS,
        enable_fp_fusion=FP_FUSION,
    )
