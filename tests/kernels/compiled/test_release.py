"""The kernels of the release compile for every GPU that we name, without atomics, in 16-byte accesses."""

import pytest

from tests.kernels.compiled.ahead import (
    Source,
    accesses,
    binary,
    everywhere,
)
from trainer_core.kernels.release.launch import tile
from trainer_core.kernels.release.triton import (
    COLUMNS,
    WARPS,
    gate_backward_kernel,
    gate_kernel,
    release_backward_kernel,
    release_kernel,
)

ROWS_OF = ("x", "u", "s", "z", "grad", "out", "d_x", "d_u", "d_s", "d_z")
"""Arguments of [n, C] in the dtype of activations; those that are not lengths are float32."""

LENGTHS = ("n", "C", "x_stride", "u_stride", "s_stride", "z_stride", "per_strip")


def _source(kernel: object, kind: str, *, alone: bool = False, whole: bool = False, binary: bool) -> Source:
    names = kernel.arg_names  # type: ignore[attr-defined]
    rows, block = tile(8192, 4096, None if whole else COLUMNS)
    constants = {"BINARY": binary, "ROWS": rows, "BLOCK": block}
    if not whole:
        constants["TWO_SIDED"] = alone
    if alone:
        constants |= dict.fromkeys(name for name in ("u", "theta_u", "d_u", "sums_u") if name in names)
    types = {
        name: kind if name in ROWS_OF else "i32" if name in LENGTHS else "fp32" if name == "eps" else "*fp32"
        for name in names
        if name not in constants
    }
    aligned = tuple(name for name in types if name not in ("n", "per_strip", "eps"))
    return Source(kernel=kernel, types=types, constants=constants, aligned=aligned, num_warps=WARPS)


SOURCES = {
    f"{name} {kind}{' binary' * binary}": source
    for kind in ("*fp32", "*bf16")
    for binary in (False, True)
    if kind == "*bf16" or not binary
    for name, source in {
        "release": _source(release_kernel, kind, alone=True, binary=binary),
        "release backward": _source(release_backward_kernel, kind, alone=True, binary=binary),
        "product": _source(release_kernel, kind, binary=binary),
        "product backward": _source(release_backward_kernel, kind, binary=binary),
        "gate": _source(gate_kernel, kind, whole=True, binary=binary),
        "gate backward": _source(gate_backward_kernel, kind, whole=True, binary=binary),
    }.items()
}

STREAMS = {
    "release": (1, 1),
    "release backward": (2, 1),
    "product": (2, 1),
    "product backward": (3, 2),
    "gate": (2, 1),
    "gate backward": (3, 2),
}
"""Activations that a tile reads and writes."""

PER_THREAD = 4096 // (32 * WARPS)
"""Elements of a tile that a thread holds."""


@pytest.mark.parametrize(("name", "architecture"), everywhere(SOURCES, trained="*bf16"))
def test_a_binary_without_fusion_or_atomics_that_moves_16_bytes_at_a_time(
    name: str, architecture: int
) -> None:
    ptx = binary(f"release {name}", SOURCES[name], architecture)
    found = accesses(ptx)
    loads, stores = STREAMS[name.split(" *")[0]]
    size = 2 if "*bf16" in name else 4
    each = PER_THREAD * size // 16
    assert found["ld.v4.b32"] >= loads * each
    assert found["st.v4.b32"] >= stores * each
