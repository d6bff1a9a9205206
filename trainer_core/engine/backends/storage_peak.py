"""Bytes of the storages that are born and die while a part of the step runs, as an allocator counts them.

Owns the counting and nothing else. A storage is counted once, however many tensors view it, from the operator
that returned it to the moment the last tensor is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, UntypedStorage

ROUNDING = 512
"""The CUDA caching allocator hands out multiples of this."""


@dataclass(frozen=True, kw_only=True)
class Birth:
    """A storage that a part made."""

    num_bytes: int
    """Its size, rounded as the allocator rounds it."""
    op: str
    """Operator that made it."""
    storage: weakref.ref[UntypedStorage]
    """The storage itself, while it lives."""


class StoragePeak:
    """Live and largest bytes of the storages that observed operators made."""

    def __init__(self) -> None:
        self._live: dict[int, Birth] = {}
        self._bytes = 0
        self.peak_bytes = 0
        """Largest sum of live bytes so far."""

    def observe(self, op: str, arguments: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Counts what an operator returned and no argument of it had."""
        known = {tensor.untyped_storage()._cdata for tensor in arguments}
        for result in results:
            storage = result.untyped_storage()
            if storage._cdata not in known and storage._cdata not in self._live:
                self._born(storage, op)

    def born(self, tensor: Tensor) -> bool:
        """Whether a tensor's storage is one of those that were made and live."""
        return tensor.untyped_storage()._cdata in self._live

    def alive(self) -> list[Birth]:
        """The storages that are not gone, oldest first."""
        return list(self._live.values())

    def _born(self, storage: UntypedStorage, op: str) -> None:
        key, size = storage._cdata, -(-storage.nbytes() // ROUNDING) * ROUNDING

        def died(_: object) -> None:
            del self._live[key]
            self._bytes -= size

        self._live[key] = Birth(num_bytes=size, op=op, storage=weakref.ref(storage, died))
        self._bytes += size
        self.peak_bytes = max(self.peak_bytes, self._bytes)


def tensors_in(values: Any) -> list[Tensor]:
    """Every tensor of an operator's arguments or results, in order."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return []
    return [tensor for value in values for tensor in tensors_in(value)]
