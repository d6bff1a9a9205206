"""The kernels of RMSNorm compile for every GPU that we name, without atomics, in 16-byte accesses."""

import pytest

from tests.kernels.compiled.ahead import (
    Source,
    accesses,
    binary,
    compiled,
    everywhere,
)
from trainer_core.kernels.compiler import FP_FUSION
from trainer_core.kernels.norm.triton import norm_backward_kernel, norm_kernel, tile

LENGTHS = ("n", "C", "x_stride", "grad_stride", "per_strip")


def _source(kernel: object, C: int, kind: str, weight: str) -> Source:
    names = kernel.arg_names  # type: ignore[attr-defined]
    rows, block, warps = tile(16_384, C)
    constants = {"ROWS": rows, "BLOCK": block}
    types = {
        **dict.fromkeys(names, kind),
        **dict.fromkeys(("scales", "sums"), "*fp32"),
        **dict.fromkeys(LENGTHS, "i32"),
        "weight": weight,
        "eps": "fp32",
    }
    types = {name: types[name] for name in names if name not in constants}
    aligned = tuple(name for name in types if name not in ("n", "per_strip", "eps"))
    return Source(kernel=kernel, types=types, constants=constants, aligned=aligned, num_warps=warps)


SOURCES = {
    f"{name} {C} {kind} {weight}": (_source(kernel, C, kind, weight), streams)
    for name, kernel, streams in (("norm", norm_kernel, (1, 1)), ("backward", norm_backward_kernel, (2, 1)))
    for C, kind, weight in (
        (2048, "*bf16", "*bf16"),
        (2048, "*bf16", "*fp32"),
        (2048, "*fp32", "*fp32"),
        (1408, "*bf16", "*bf16"),
        (8192, "*bf16", "*bf16"),
    )
}
"""With the activations that a tile reads and writes."""


@pytest.mark.parametrize(("name", "architecture"), everywhere(SOURCES, trained="2048 *bf16 *bf16"))
def test_a_binary_without_fusion_or_atomics_that_moves_16_bytes_at_a_time(
    name: str, architecture: int
) -> None:
    source, (loads, stores) = SOURCES[name]
    ptx = binary(f"rms norm {name}", source, architecture)
    elements = source.constants["ROWS"] * source.constants["BLOCK"] // (32 * source.num_warps)
    each = elements * (4 if source.types["x"] == "*fp32" else 2) // 16
    found = accesses(ptx)
    assert found["ld.v4.b32"] >= loads * each
    assert found["st.v4.b32"] >= stores * each


@pytest.mark.parametrize("name", [name for name in SOURCES if "8192" in name])
def test_the_longest_row_stays_in_registers(name: str) -> None:
    built = compiled(f"rms norm {name}", SOURCES[name][0], 90, FP_FUSION)
    assert ".local" not in built.asm["ptx"]
