"""The kernels of the head's loss compile for every GPU that we name, without atomics, in 16-byte accesses."""

import pytest

from tests.kernels.compiled.ahead import ARCHITECTURES, Source, accesses, atomics, compiled, fused
from trainer_core.kernels.compiler import FP_FUSION
from trainer_core.kernels.cross_entropy.triton import (
    BLOCK,
    GRADIENT_BLOCK,
    GRADIENT_WARPS,
    WARPS,
    gradient_kernel,
    losses_kernel,
)

LOGARITHM = 16
"""Products and sums that the library's logarithm fuses at most; each row has one."""

ROWS = dict.fromkeys(("losses", "tops", "sums"), "*fp32")


def _sources(kind: str, V: str) -> dict[str, Source]:
    """`V` is a vocabulary of a multiple of 16 words, or any."""
    own = {"logits": kind, "targets": "*i64", "V": "i32"}
    aligned = ("logits", "targets", *(("V",) if V == "even" else ()))
    both = {
        "losses": (losses_kernel, ROWS, BLOCK, WARPS),
        "gradient": (gradient_kernel, {n: ROWS[n] for n in ("tops", "sums")}, GRADIENT_BLOCK, GRADIENT_WARPS),
    }
    return {
        f"{name} {kind} {V}": Source(
            kernel=kernel,
            types=own | rows,
            constants={"BLOCK": block},
            aligned=aligned,
            num_warps=warps,
        )
        for name, (kernel, rows, block, warps) in both.items()
    }


SOURCES = {
    name: source
    for kind in ("*fp32", "*bf16")
    for V in ("even", "odd")
    for name, source in _sources(kind, V).items()
}


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


EVERYWHERE = [(name, architecture) for name in SOURCES for architecture in ARCHITECTURES[:1]]
EVERYWHERE += [(n, a) for n in SOURCES if n.endswith("*bf16 even") for a in ARCHITECTURES[1:]]
"""What training launches is compiled for every GPU, the other variants for one."""


@pytest.mark.parametrize(("name", "architecture"), EVERYWHERE)
def test_a_binary_without_fusion_of_its_own_or_atomics_that_moves_16_bytes_at_a_time(
    name: str, architecture: int
) -> None:
    built = compiled(f"cross entropy {name}", SOURCES[name], architecture, FP_FUSION)
    assert built.asm["cubin"][:4] == b"\x7fELF"
    ptx = built.asm["ptx"]
    assert fused(ptx) <= LOGARITHM * name.startswith("losses") and atomics(ptx) == 0
    if name.endswith("odd"):
        return
    source = SOURCES[name]
    per_thread = source.constants["BLOCK"] // (32 * source.num_warps) * (2 if "bf16" in name else 4)
    found = accesses(ptx)
    assert found["ld.v4.b32"] >= per_thread // 16
    if name.startswith("gradient"):
        assert found["st.v4.b32"] >= per_thread // 16
