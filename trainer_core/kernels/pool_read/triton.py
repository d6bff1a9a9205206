"""Launches of the pool read's kernels: one forward, two backward; which blocks they work in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer_core.kernels.compiler import FP_FUSION
from trainer_core.kernels.pool_read.triton_backward import events_kernel, queries_kernel
from trainer_core.kernels.pool_read.triton_forward import forward_kernel

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
"""What q, k and v may be: products are of this type, sums and logits in float32."""

PRECISION = "tf32x3"
"""Of products of float32: three on tensor cores come close to float32, where its own run on none."""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """How a kernel cuts its work."""

    M: int
    """Queries per block."""
    N: int
    """Events per block."""
    num_warps: int
    """Warps of a program."""
    num_stages: int
    """Blocks that are loaded ahead, and the one at work."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The blocks of each kernel."""

    forward: Tiles
    """Of the forward pass."""
    queries: Tiles
    """Of the backward pass over queries."""
    events: Tiles
    """Of the backward pass over events."""


def plan(dtype: torch.dtype, head_dim: int) -> Plan:
    """Blocks that fit a multiprocessor's registers, shared and tensor memory, for q of a dtype and width."""
    if dtype == torch.float32:
        blocks = Tiles(M=64, N=32, num_warps=4, num_stages=2)
        return Plan(forward=blocks, queries=blocks, events=Tiles(M=32, N=64, num_warps=4, num_stages=2))
    wide = Tiles(M=32, N=128, num_warps=8, num_stages=2)
    narrow = Tiles(M=64, N=64, num_warps=4, num_stages=2)
    return Plan(
        forward=Tiles(M=128, N=64, num_warps=8, num_stages=3),
        queries=Tiles(M=128, N=64, num_warps=8, num_stages=2),
        events=wide if head_dim > 64 else narrow,
    )


def constants(q: Tensor, k: Tensor, tiles: Tiles) -> dict[str, object]:
    """What a kernel is compiled for."""
    return {
        "H": q.shape[1],
        "K": k.shape[1],
        "D": q.shape[3],
        "M": tiles.M,
        "N": tiles.N,
        "DT": DTYPES[q.dtype],
        "PRECISION": PRECISION,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
        "enable_fp_fusion": FP_FUSION,
    }


def inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    clock: Tensor,
    log_write: Tensor,
    ids: Tensor,
    before: Tensor,
    match: Tensor,
) -> list[Tensor]:
    """The arguments as the kernels read them: contiguous, tokens in 32 bits, what is added in float32."""
    products = [x.contiguous() for x in (q, k, v)]
    clock, log_write, match = (x.float().contiguous() for x in (clock, log_write, match))
    ids, before = (x.int().contiguous() for x in (ids, before))
    return [*products, clock, log_write, ids, before, match]


def forward_triton(read: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, d] and log-sum-exp [B, H, T] of `inputs`."""
    q, k = read[:2]
    B, H, T, d = q.shape
    tiles = plan(q.dtype, d).forward
    out, lse = torch.empty_like(q), q.new_empty(B, H, T, dtype=torch.float32)
    grid = (triton.cdiv(T, tiles.M), B * H)
    forward_kernel[grid](*read, out, lse, 1 / math.sqrt(d), T, k.shape[2], **constants(q, k, tiles))
    return out, lse


def backward_triton(
    read: list[Tensor], grad: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, clock, log_write and match."""
    q, k, _, clock, log_write, _, _, match = read
    (B, H, T, d), (_, K, S, _) = q.shape, k.shape
    p, scale, grad = plan(q.dtype, d), 1 / math.sqrt(d), grad.contiguous()
    dq, dk, dv, dclock, dlog_write, dmatch = (torch.empty_like(x) for x in (q, k, k, clock, log_write, match))
    delta = torch.empty_like(lse)
    queries_kernel[triton.cdiv(T, p.queries.M), B * H](
        *read, grad, out, lse, delta, dq, dmatch, scale, T, S, **constants(q, k, p.queries)
    )
    events_kernel[triton.cdiv(S, p.events.N), B * K](
        *read, grad, lse, delta, dk, dv, dclock, dlog_write, scale, T, S, **constants(q, k, p.events)
    )
    return dq, dk, dv, dclock, dlog_write, dmatch
