"""The kernels of the scan compile for every GPU that we name: tensor cores, wide loads, no atomics."""

from __future__ import annotations

import re
from typing import Any

import pytest
import triton.language as tl

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
from trainer_core.kernels.scan.layout import HEADS
from trainer_core.kernels.scan.triton import CUMSUM_HEADS, PASS_BLOCK, ROWS, WARPS
from trainer_core.kernels.scan.triton_scan import (
    chunk_scan_backward_kernel,
    chunk_scan_groups_kernel,
    chunk_scan_kernel,
)
from trainer_core.kernels.scan.triton_state import (
    chunk_cumsum_kernel,
    chunk_state_kernel,
    state_pass_backward_kernel,
    state_pass_kernel,
)

H, P, G, N, Q = 64, 64, 1, 128, 128
"""A layer of the largest preset, in the chunks that bfloat16 has on a GPU."""

NUMBERS = dict.fromkeys(("T", "chunks", "B", "BH"), "i32")
FLOATS = ("cum", "steps", "V", "d_V", "A", "kept", "d_steps", "d_A", "dt")


def _source(kernel: Any, kind: str, chunk: int, **constants: Any) -> Source:
    tile = {"BLOCK_N": N, "BLOCK_P": P, "DT": tl.bfloat16 if kind == "*bf16" else tl.float32}
    known = {"H": H, "P": P, "G": G, "N": N, "Q": chunk, "PRECISION": "tf32x3", **tile, **constants}
    names = kernel.arg_names
    pointers = [name for name in names if name not in known and name not in NUMBERS]
    types = {name: "*fp32" if name in FLOATS else kind for name in pointers}
    if kernel in (chunk_state_kernel, chunk_scan_groups_kernel):
        types["out"] = "*fp32"
    return Source(
        kernel=kernel,
        types=types | {name: kind for name, kind in NUMBERS.items() if name in names},
        constants={name: value for name, value in known.items() if name in names},
        aligned=tuple(pointers),
        num_warps=WARPS if "PRECISION" in names else 4,
    )


TENSOR_CORES = {90: "wgmma.mma_async", 100: "tcgen05.mma", 103: "tcgen05.mma"}

PASS = {"SIZE": N * P, "BLOCK": PASS_BLOCK}
GROUPS = {"ROWS": ROWS, "HEADS": HEADS}
SOURCES = {
    "cumsum": _source(chunk_cumsum_kernel, "*fp32", Q, HEADS=CUMSUM_HEADS),
    "pass": _source(state_pass_kernel, "*fp32", Q, **PASS),
    "pass backward": _source(state_pass_backward_kernel, "*fp32", Q, **PASS),
    "state": _source(chunk_state_kernel, "*bf16", Q, AFTER=True),
    "state backward": _source(chunk_state_kernel, "*bf16", Q, AFTER=False),
    "scan": _source(chunk_scan_kernel, "*bf16", Q),
    "scan backward": _source(chunk_scan_backward_kernel, "*bf16", Q),
    "reads backward": _source(chunk_scan_groups_kernel, "*bf16", Q, READS=True, **GROUPS),
    "writes backward": _source(chunk_scan_groups_kernel, "*bf16", Q, READS=False, **GROUPS),
}

SMALL = {"N": 16, "BLOCK_N": 16, "P": 32, "BLOCK_P": 32, "H": 8}
OTHERS = {
    "state backward fp32": _source(chunk_state_kernel, "*fp32", 16, AFTER=False, **SMALL),
    "scan fp32": _source(chunk_scan_kernel, "*fp32", 16, **SMALL),
    "scan backward fp32": _source(chunk_scan_backward_kernel, "*fp32", 16, **SMALL),
    "reads backward fp32": _source(
        chunk_scan_groups_kernel, "*fp32", 16, READS=True, ROWS=16, HEADS=8, **SMALL
    ),
    "one compartment": _source(chunk_scan_kernel, "*fp32", 16, **SMALL | {"N": 1}),
}
"""Small tiles in float32, on one architecture."""


def _compiled(name: str, architecture: int) -> Any:
    return compiled(f"scan: {name}", {**SOURCES, **OTHERS}[name], architecture, FP_FUSION)


def _ptx(name: str, architecture: int) -> str:
    return _compiled(name, architecture).asm["ptx"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", SOURCES)
def test_without_fusion_or_atomics_on_tensor_cores(name: str, architecture: int) -> None:
    ptx = _ptx(name, architecture)
    assert _compiled(name, architecture).asm["cubin"][:4] == b"\x7fELF"
    assert_fits(_compiled(name, architecture))
    assert f".target sm_{architecture}" in ptx
    assert fused(ptx) == atomics(ptx) == 0
    assert (TENSOR_CORES[architecture] in ptx) == ("PRECISION" in SOURCES[name].constants)


@pytest.mark.parametrize("name", OTHERS)
def test_small_tiles_compile(name: str) -> None:
    ptx = _ptx(name, 90)
    assert fused(ptx) == atomics(ptx) == 0


TILES = {
    "r": Q * N * 2,
    "b": Q * N * 2,
    "x": Q * N * 2,
    "u": Q * P * 2,
    "g": Q * P * 2,
    "V": N * P * 4,
    "d_V": N * P * 4,
}
"""Bytes of a tile by argument; the own and other rows of a group are copied to shared memory instead."""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", ["state", "state backward", "scan", "scan backward"])
def test_every_stream_of_a_chunk_moves_16_bytes_at_a_time(name: str, architecture: int) -> None:
    """Only exponents and steps, a few numbers for each token, may move less."""
    found, source = accesses(_ptx(name, architecture)), SOURCES[name]
    tiles = sum(size for argument, size in TILES.items() if argument in source.types)
    assert found["ld.v4.b32"] >= tiles // (16 * 32 * WARPS)
    assert found["st.v4.b32"] == (N * P * 4 if name.startswith("state") else Q * P * 2) // (16 * 32 * WARPS)
    assert set(found) <= {"ld.b32", "ld.v2.b32", "ld.v4.b32", "st.b32", "st.v4.b32"}
    assert found["st.b32"] == (2 if name == "scan backward" else 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", ["reads backward", "writes backward"])
def test_the_rows_of_the_next_head_are_on_their_way(name: str, architecture: int) -> None:
    ptx = _ptx(name, architecture)
    assert re.search(r"cp\.async\.cg\.shared\.global .*, 0x10", ptx)
    assert set(accesses(ptx)) <= {"ld.b32", "ld.v2.b32", "ld.v4.b32", "st.v4.b32"}
    assert accesses(ptx)["st.v4.b32"] == ROWS * N * 4 // (16 * 32 * WARPS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_pass_over_chunks_moves_16_bytes_at_a_time(architecture: int) -> None:
    found = accesses(_ptx("pass", architecture))
    assert set(found) == {"ld.v4.b32", "st.v4.b32", "ld.b32"} and found["ld.b32"] == 1
    found = accesses(_ptx("pass backward", architecture))
    assert set(found) == {"ld.v4.b32", "st.v4.b32", "ld.b32", "st.b32"} and found["ld.b32"] == 1
