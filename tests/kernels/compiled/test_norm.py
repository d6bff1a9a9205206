"""The kernels of RMSNorm compile for every GPU that we name, without atomics, in 16-byte accesses."""

import pytest

from tests.kernels.compiled.ahead import ARCHITECTURES, Source, accesses, atomics, compiled, fused
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


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


EVERYWHERE = [(name, architecture) for name in SOURCES for architecture in ARCHITECTURES[:1]]
EVERYWHERE += [(n, a) for n in SOURCES if n.endswith("2048 *bf16 *bf16") for a in ARCHITECTURES[1:]]
"""What training launches is compiled for every GPU, the other variants for one."""


@pytest.mark.parametrize(("name", "architecture"), EVERYWHERE)
def test_a_binary_without_fusion_or_atomics_that_moves_16_bytes_at_a_time(
    name: str, architecture: int
) -> None:
    source, (loads, stores) = SOURCES[name]
    built = compiled(f"rms norm {name}", source, architecture, FP_FUSION)
    assert built.asm["cubin"][:4] == b"\x7fELF"
    ptx = built.asm["ptx"]
    assert fused(ptx) == 0 and atomics(ptx) == 0
    elements = source.constants["ROWS"] * source.constants["BLOCK"] // (32 * source.num_warps)
    each = elements * (4 if source.types["x"] == "*fp32" else 2) // 16
    found = accesses(ptx)
    assert found["ld.v4.b32"] >= loads * each
    assert found["st.v4.b32"] >= stores * each


@pytest.mark.parametrize("name", [name for name in SOURCES if "8192" in name])
def test_the_longest_row_stays_in_registers(name: str) -> None:
    built = compiled(f"rms norm {name}", SOURCES[name][0], 90, FP_FUSION)
    assert ".local" not in built.asm["ptx"]
