"""Compiles kernels ahead of time for GPUs that are not here, and reads the assembly."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

ARCHITECTURES = (90, 100, 103) if VERSION >= (3, 6) else (90, 100)
"""Triton 3.5 brings no assembler for 103."""


@dataclass(frozen=True)
class Source:
    """One variant of a kernel."""

    kernel: Any
    """The decorated function."""
    types: Mapping[str, str]
    """Triton's name of the type of each argument that is not a constant."""
    constants: Mapping[str, Any]
    """The other arguments."""
    aligned: tuple[str, ...]
    """Arguments that are multiples of 16: pointers in bytes, lengths in elements."""
    num_warps: int
    """Warps of a program."""
    num_stages: int = 3
    """Blocks of a loop in flight: those that are loaded ahead, and the one at work."""


@functools.cache
def _compile(name: str, architecture: int, fusion: bool) -> Any:
    source = _SOURCES[name]
    names = source.kernel.arg_names
    signature = {n: source.types.get(n, "constexpr") for n in names}
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in source.aligned}
    return triton.compile(
        ASTSource(source.kernel, signature, dict(source.constants), attributes),
        target=GPUTarget("cuda", architecture, 32),
        options={
            "num_warps": source.num_warps,
            "num_stages": source.num_stages,
            "enable_fp_fusion": fusion,
        },
    )


_SOURCES: dict[str, Source] = {}


def compiled(name: str, source: Source, architecture: int, fusion: bool) -> Any:
    """The compiled kernel; each is compiled once in a process."""
    _SOURCES[name] = source
    return _compile(name, architecture, fusion)


def accesses(ptx: str) -> Counter[str]:
    """Global loads and stores by width, such as `ld.v4.b32`."""
    found = re.findall(r"\b(ld|st)\.global(?:\.\w+)*?((?:\.v\d)?\.b\d+)\b", ptx)
    return Counter(kind + width for kind, width in found)


def fused(ptx: str) -> int:
    """Fused products and sums."""
    return len(re.findall(r"\bfma\.", ptx))


def atomics(ptx: str) -> int:
    """Atomic accesses, which add in no fixed order."""
    return len(re.findall(r"\b(?:atom|red)\.", ptx))
