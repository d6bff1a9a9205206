"""What the processor can do that decides how we compute on it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch


@cache
def has_bf16_matmul() -> bool:
    """Whether products of bfloat16 matrices run on instructions of their own; without them they are slow.

    AVX512-BF16 or AMX on x86, BF16 on ARM, and the library that uses them. Torch says it in other words from
    version to version, and a torch that says nothing of it counts as none.
    """
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):  # type: ignore[no-untyped-call]
        return False
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    if any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16")):
        return True
    questions = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in questions)
