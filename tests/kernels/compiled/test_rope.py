"""The kernel of the rotation compiles for every GPU that we name, in 16-byte accesses."""

import pytest

from tests.kernels.compiled.ahead import ARCHITECTURES, Source, accesses, binary
from trainer_core.kernels.rope.triton import ELEMENTS, WARPS, rotate_kernel

HALF = 64
STRIDES = tuple(f"{of}_{axis}" for of in ("x", "out") for axis in ("row", "head", "token"))


def _source(kind: str, sign: int) -> Source:
    return Source(
        kernel=rotate_kernel,
        types={
            **dict.fromkeys(("x", "out"), kind),
            **dict.fromkeys(("cos", "sin"), "*fp32"),
            **dict.fromkeys(("n", "T", "H", *STRIDES), "i32"),
        },
        constants={"SIGN": sign, "HALF": HALF, "ROWS": ELEMENTS // HALF, "BLOCK": HALF},
        aligned=("x", "out", "cos", "sin", *STRIDES),
        num_warps=WARPS,
    )


SOURCES = {f"{kind} {sign}": _source(kind, sign) for kind in ("*bf16", "*fp32") for sign in (1, -1)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", SOURCES)
def test_a_binary_that_moves_16_bytes_at_a_time(name: str, architecture: int) -> None:
    ptx = binary(f"rotate {name}", SOURCES[name], architecture)
    each = ELEMENTS // (32 * WARPS) * (2 if "bf16" in name else 4) // 16
    found = accesses(ptx)
    assert found["ld.v4.b32"] >= 2 * each and found["st.v4.b32"] >= 2 * each
