"""The pool read's kernels compile for every GPU that we name: tensor cores, early loads, no atomics."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch

from tests.kernels.compiled.ahead import (
    ARCHITECTURES,
    Source,
    accesses,
    assert_fits,
    atomics,
    compiled,
    fused,
)
from trainer_core.kernels.compiler import FP_FUSION
from trainer_core.kernels.pool_read.op import KERNEL_HEAD_DIMS
from trainer_core.kernels.pool_read.triton import DTYPES, PRECISION, Tiles, plan
from trainer_core.kernels.pool_read.triton_backward import events_kernel, queries_kernel
from trainer_core.kernels.pool_read.triton_forward import forward_kernel

NAMES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}
PRODUCTS = {"q", "k", "v", "out", "grad", "dq", "dk", "dv"}
NUMBERS = {"scale": "fp32", "T": "i32", "S": "i32"}
CONSTANTS = {"H", "K", "D", "M", "N", "DT", "PRECISION"}

TENSOR_CORES = {90: "wgmma.mma_async", 100: "tcgen05.mma", 103: "tcgen05.mma"}


def _source(kernel, tiles: Tiles, dtype: torch.dtype, head_dim: int) -> Source:
    """16 query heads on 4 key heads."""
    pointers = [name for name in kernel.arg_names if name not in NUMBERS and name not in CONSTANTS]
    types = {name: NAMES[dtype] if name in PRODUCTS else "*fp32" for name in pointers}
    return Source(
        kernel=kernel,
        types={**types, "ids": "*i32", "before": "*i32", **NUMBERS},
        constants={
            "H": 16,
            "K": 4,
            "D": head_dim,
            "M": tiles.M,
            "N": tiles.N,
            "DT": DTYPES[dtype],
            "PRECISION": PRECISION,
        },
        aligned=tuple(pointers),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def _sources(dtype: torch.dtype, head_dim: int) -> dict[str, Source]:
    p = plan(dtype, head_dim)
    parts = {"forward": forward_kernel, "queries": queries_kernel, "events": events_kernel}
    return {
        f"pool read, {name} {dtype} {head_dim}": _source(kernel, getattr(p, name), dtype, head_dim)
        for name, kernel in parts.items()
    }


STREAMS = {forward_kernel: (1, 1), queries_kernel: (3, 1), events_kernel: (2, 2)}
"""Tiles that a program loads and stores once; those of the loop, two at a time, are copied ahead."""

QUICK = _sources(torch.bfloat16, 64)
WIDEST = {dtype: _sources(dtype, max(dims)) for dtype, dims in KERNEL_HEAD_DIMS.items()}
SOURCES = QUICK | WIDEST[torch.bfloat16] | WIDEST[torch.float32]
CASES = [(90, name) for name in QUICK] + [
    pytest.param(architecture, name, marks=pytest.mark.slow)
    for dtype, architectures in (
        (torch.bfloat16, ARCHITECTURES),
        (torch.float32, (ARCHITECTURES[0], ARCHITECTURES[-1])),
    )
    for architecture in architectures
    for name in WIDEST[dtype]
]


@pytest.mark.parametrize(("architecture", "name"), CASES)
def test_a_binary_that_loads_ahead_for_tensor_cores(architecture: int, name: str) -> None:
    source = SOURCES[name]
    built = compiled(name, source, architecture, FP_FUSION)
    ptx = built.asm["ptx"]
    assert built.asm["cubin"][:4] == b"\x7fELF"
    assert f".target sm_{architecture}" in ptx
    assert atomics(ptx) == 0
    assert fused(ptx) == 0 or source.kernel is forward_kernel, "a logarithm is made of them"
    assert TENSOR_CORES[architecture] in ptx
    assert_fits(built)
    # The tiles of q, k, v and their gradients move 16 bytes at a time; what is one number per query or event
    # moves one at a time.
    loads, stores = STREAMS[source.kernel]
    own, other = (source.constants[rows] for rows in ("NM" if source.kernel is events_kernel else "MN"))
    per_row = source.constants["D"] * (2 if "bfloat16" in name else 4)
    each, ahead = (rows * per_row // (16 * 32 * source.num_warps) for rows in (own, other))
    found = accesses(ptx)
    assert (found["ld.v4.b32"], found["st.v4.b32"]) == (loads * each, stores * each)
    assert set(found) <= {"ld.v4.b32", "st.v4.b32", "ld.b32", "st.b32"}, found
    copies = Counter(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^\]]*\], \[[^\]]*\], (\w+)", ptx))
    assert set(copies) <= {"0x10", "0x4"}, copies
    assert copies["0x10"] >= 4 * ahead and copies["0x10"] % (2 * ahead) == 0, "before the loop and in it"
