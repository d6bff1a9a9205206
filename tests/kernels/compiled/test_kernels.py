"""Every kernel compiles for every GPU that we name, moves 16 bytes at a time, rounds where its twin does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernels.compiled.ahead import ARCHITECTURES, Source, accesses, binary, compiled, fused
from trainer_core.kernels.adamw.triton import BLOCK, SCALARS, WARPS, adamw_kernel
from trainer_core.kernels.compiler import FP_FUSION
from trainer_core.kernels.dropout.triton import BLOCK as DROPOUT_BLOCK
from trainer_core.kernels.dropout.triton import dropout_kernel
from trainer_core.kernels.grad_norm import BLOCK as NORM_BLOCK
from trainer_core.kernels.grad_norm.reference import CLIP_EPSILON
from trainer_core.kernels.grad_norm.triton import (
    CHUNK,
    ROWS,
    block_squares_kernel,
    finish_kernel,
    label_squares_kernel,
)

FULL = Source(
    kernel=adamw_kernel,
    types={
        **dict.fromkeys("PGMVE", "*fp32"),
        "W": "*bf16",
        **dict.fromkeys(SCALARS, "*fp64"),
        "ok": "*i1",
        "n": "i32",
        "steps": "i32",
    },
    constants={"BLOCK": BLOCK},
    aligned=(*"PGMVEW", "n"),
    num_warps=WARPS,
)


def _without(*names: str) -> Source:
    return replace(
        FULL,
        types={name: kind for name, kind in FULL.types.items() if name not in names},
        constants={**FULL.constants, **dict.fromkeys(names)},
        aligned=tuple(name for name in FULL.aligned if name not in names),
    )


def _dropout(kind: str) -> Source:
    return Source(
        kernel=dropout_kernel,
        types={
            "x": kind,
            "out": kind,
            "counter": "*i64",
            "site": "i32",
            "least": "i32",
            "scale": "fp32",
            "n": "i32",
        },
        constants={"BLOCK": DROPOUT_BLOCK},
        aligned=("x", "out", "n"),
        num_warps=8,
    )


SOURCES = {
    "adamw": FULL,
    "adamw without average": _without("E", "ema_weight"),
    "adamw without copy": _without("W"),
    "adamw alone": _without("E", "ema_weight", "W"),
    "block squares": Source(
        kernel=block_squares_kernel,
        types={"G": "*fp32", "squares": "*fp64", "num_blocks": "i32"},
        constants={"BLOCK": NORM_BLOCK, "ROWS": ROWS},
        aligned=("G", "squares"),
        num_warps=ROWS,
    ),
    "label squares": Source(
        kernel=label_squares_kernel,
        types={"squares": "*fp64", "starts": "*i32", "bounds": "*i32", "sums": "*fp64"},
        constants={"CHUNK": CHUNK},
        aligned=("squares", "starts", "bounds", "sums"),
        num_warps=8,
    ),
    "finish": Source(
        kernel=finish_kernel,
        types={
            **dict.fromkeys(("sums", "max_norm", "betas", "products", "norms", "clip"), "*fp64"),
            "counters": "*i64",
            "ok": "*i1",
            "num_labels": "i32",
        },
        constants={"EPSILON": CLIP_EPSILON, "LABELS": 64},
        aligned=("sums",),
        num_warps=4,
    ),
    "dropout fp32": _dropout("*fp32"),
    "dropout bf16": _dropout("*bf16"),
}


def _ptx(name: str, architecture: int, fusion: bool = FP_FUSION) -> str:
    return compiled(name, SOURCES[name], architecture, fusion).asm["ptx"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", SOURCES)
def test_a_binary_without_fusion_or_atomics(name: str, architecture: int) -> None:
    binary(name, SOURCES[name], architecture)


STREAMS = {
    "adamw": (5, 5, 1),
    "adamw without average": (4, 4, 1),
    "adamw without copy": (5, 5, 0),
    "adamw alone": (4, 4, 0),
}
"""Float32 buffers read, float32 buffers written, bfloat16 buffers written."""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", STREAMS)
def test_every_stream_of_the_update_moves_four_elements_at_a_time(name: str, architecture: int) -> None:
    """And each once: no other access is wider than a scalar of the block."""
    loads, stores, copies = STREAMS[name]
    found = accesses(_ptx(name, architecture))
    assert found.pop("ld.v4.b32") == loads
    assert found.pop("st.v4.b32") == stores
    assert found.pop("st.v2.b32", 0) == copies, "four bfloat16 are 8 bytes"
    scalars = 9 if "E" not in SOURCES[name].constants else 8
    assert found == {"ld.b64": scalars, "ld.b8": 1}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_norm_reads_four_elements_at_a_time(architecture: int) -> None:
    found = accesses(_ptx("block squares", architecture))
    assert found["ld.v4.b32"] == NORM_BLOCK * ROWS // (4 * 32 * ROWS)
    assert {width for width in found if width.startswith("ld")} == {"ld.v4.b32"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("name", "size"), [("dropout fp32", 4), ("dropout bf16", 2)])
def test_dropout_moves_16_bytes_at_a_time(name: str, size: int, architecture: int) -> None:
    found = accesses(_ptx(name, architecture))
    assert found["ld.v4.b32"] == found["st.v4.b32"] == DROPOUT_BLOCK * size // (16 * 32 * 8)


def test_without_alignment_the_counts_would_show_it() -> None:
    """The counts above are worth what this difference is worth."""
    source = replace(FULL, aligned=tuple(FULL.aligned[:-1]))
    found = accesses(compiled("adamw, odd length", source, 90, FP_FUSION).asm["ptx"])
    assert found["ld.v4.b32"] == 0 and found["ld.b32"] > 5


def test_fusion_is_off_because_the_option_says_so() -> None:
    assert not FP_FUSION
    assert fused(_ptx("adamw", 90, fusion=True)) > 10
