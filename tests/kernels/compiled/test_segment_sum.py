"""The kernels that sum by index compile for every GPU that we name, without atomics, in 16-byte accesses."""

import pytest

from tests.kernels.compiled.ahead import (
    Source,
    accesses,
    binary,
    everywhere,
)
from trainer_core.kernels.segment_sum.triton import (
    BLOCK,
    TILE,
    WARPS,
    chunk_kernel,
    parts_kernel,
    weighted_rows_kernel,
    weights_gradient_kernel,
)

POINTERS = {
    "ids": "*i32",
    "order": "*i64",
    "ends": "*i64",
    "slots": "*i64",
    "weights": "*fp32",
    "parts": "*fp32",
}


def _source(kernel: object, streams: dict[str, str], **constants: object) -> Source:
    """`streams` names the types of rows; all but constants have those of POINTERS, or are a length."""
    types = {
        name: streams.get(name, POINTERS.get(name, "i32"))
        for name in kernel.arg_names  # type: ignore[attr-defined]
        if name not in constants
    }
    return Source(
        kernel=kernel,
        types=types,
        constants=constants,
        aligned=tuple(name for name in types if name != "n"),
        num_warps=WARPS,
    )


SOURCES = {
    f"{name} {kind}": source
    for kind in ("*fp32", "*bf16")
    for name, source in {
        "chunk": _source(
            chunk_kernel, {"out": "*fp32", "rows": kind}, weights=None, FANOUT=1, CHUNK=32, BLOCK=BLOCK
        ),
        "weighted chunk": _source(
            chunk_kernel, {"out": "*fp32", "rows": kind}, FANOUT=64, CHUNK=32, BLOCK=BLOCK
        ),
        "parts": _source(parts_kernel, {"out": kind}, CHUNK=32, TILE=TILE, BLOCK=BLOCK),
        "rows": _source(weighted_rows_kernel, {"table": kind, "out": kind}, K=64, BLOCK=BLOCK),
        "weights": _source(
            weights_gradient_kernel, {"grad": kind, "table": kind, "out": "*fp32"}, K=64, BLOCK=BLOCK
        ),
    }.items()
}


@pytest.mark.parametrize(("name", "architecture"), everywhere(SOURCES, trained="*bf16"))
def test_a_binary_without_fusion_or_atomics_that_moves_16_bytes_at_a_time(
    name: str, architecture: int
) -> None:
    ptx = binary(f"segment sum {name}", SOURCES[name], architecture)
    found = accesses(ptx)
    assert found["ld.v4.b32"] >= 1
    assert not any(width.startswith(("ld.v2", "st.v2")) for width in found), found
