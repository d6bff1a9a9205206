"""The kernels of the head's loss compile for every GPU that we name, without atomics, in 16-byte accesses."""

import pytest

from tests.kernels.compiled.ahead import (
    Source,
    accesses,
    binary,
    everywhere,
)
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


@pytest.mark.parametrize(("name", "architecture"), everywhere(SOURCES, trained="*bf16 even"))
def test_a_binary_without_fusion_of_its_own_or_atomics_that_moves_16_bytes_at_a_time(
    name: str, architecture: int
) -> None:
    most_fused = LOGARITHM * name.startswith("losses")
    ptx = binary(f"cross entropy {name}", SOURCES[name], architecture, most_fused=most_fused)
    if name.endswith("odd"):
        return
    source = SOURCES[name]
    per_thread = source.constants["BLOCK"] // (32 * source.num_warps) * (2 if "bf16" in name else 4)
    found = accesses(ptx)
    assert found["ld.v4.b32"] >= per_thread // 16
    if name.startswith("gradient"):
        assert found["st.v4.b32"] >= per_thread // 16
