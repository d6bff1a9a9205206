"""Compiles kernels ahead of time for GPUs that are not here, and reads the assembly."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from trainer_core.kernels.compiler import FP_FUSION

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

ARCHITECTURES = (90, 100, 103) if VERSION >= (3, 6) else (90, 100)
"""Triton 3.5 brings no assembler for 103."""

SHARED_BYTES = 227 << 10
"""What a program may hold on each of them."""

TENSOR_COLUMNS = 512
"""And of the tensor memory of those that have one."""


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
    """The compiled kernel; each is compiled once in a process, so a name has one source."""
    assert _SOURCES.setdefault(name, source) == source, f"two kernels are called {name!r}"
    return _compile(name, architecture, fusion)


def everywhere(names: Iterable[str], *, trained: str) -> list[tuple[str, int]]:
    """Names and GPUs: what training launches, by the end of its name, with every GPU, others with one."""
    return [(n, a) for n in names for a in (ARCHITECTURES if n.endswith(trained) else ARCHITECTURES[:1])]


def binary(name: str, source: Source, architecture: int, *, most_fused: int = 0) -> str:
    """The assembly of a kernel that became a binary, without atomics and fusion but for `most_fused`."""
    built = compiled(name, source, architecture, FP_FUSION)
    assert built.asm["cubin"][:4] == b"\x7fELF"
    ptx: str = built.asm["ptx"]
    assert f".target sm_{architecture}" in ptx
    assert fused(ptx) <= most_fused and atomics(ptx) == 0
    return ptx


def assert_fits(built: Any) -> None:
    """A program of the compiled kernel has room on a multiprocessor."""
    assert built.metadata.shared <= SHARED_BYTES
    assert getattr(built.metadata, "tmem_size", 0) <= TENSOR_COLUMNS


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
