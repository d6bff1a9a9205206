"""The kernels of the convolution compile for every GPU that we name, without atomics, in 16-byte accesses."""

import pytest

from tests.kernels.compiled.ahead import (
    Source,
    accesses,
    binary,
    everywhere,
)
from trainer_core.kernels.conv.triton import BLOCK, ROWS, STRIP, WARPS, conv_backward_kernel, conv_kernel

LENGTHS = ("T", "C", "row_stride", "stride", "tiles", "strips")


def _source(kernel: object, kind: str, with_state: bool, warps: int, **constants: object) -> Source:
    names = kernel.arg_names  # type: ignore[attr-defined]
    if not with_state:
        constants |= dict.fromkeys(name for name in ("state", "d_state") if name in names)
    types = {
        name: "i32" if name in LENGTHS else "*fp32" if name in ("taps", "sums") else kind
        for name in names
        if name not in constants
    }
    aligned = tuple(name for name in types if name not in ("T", "tiles", "strips"))
    return Source(kernel=kernel, types=types, constants=constants, aligned=aligned, num_warps=warps)


SOURCES = {
    f"{name} {kind}{' after a state' * with_state}": source
    for kind in ("*fp32", "*bf16")
    for with_state in (False, True)
    if kind == "*bf16" or not with_state
    for name, source in {
        "conv": _source(conv_kernel, kind, with_state, WARPS, ROWS=ROWS, BLOCK=BLOCK),
        "conv backward": _source(
            conv_backward_kernel, kind, with_state, WARPS // 2, STRIP=STRIP, BLOCK=BLOCK
        ),
    }.items()
}


@pytest.mark.parametrize(("name", "architecture"), everywhere(SOURCES, trained="*bf16"))
def test_a_binary_without_fusion_or_atomics_that_moves_16_bytes_at_a_time(
    name: str, architecture: int
) -> None:
    ptx = binary(name, SOURCES[name], architecture)
    found = accesses(ptx)
    assert found["ld.v4.b32"] >= 4 and found["st.v4.b32"] >= 1
    assert set(found) == {"ld.v4.b32", "st.v4.b32"}, found
