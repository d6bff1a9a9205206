"""The backend that records a part as its closure: every device, no graph, the same order of operations.

Strict, it behaves as badly as a captured graph may: a part is rehearsed when it is recorded, and what it left
behind is overwritten after every replay, as the next graph in the pool would do. Tests train strictly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_core.engine.backends.protocol import Part, Wait
from trainer_core.engine.backends.storage_peak import StoragePeak, tensors_in


class EagerReplay:
    """Replay = call the closure again on its static tensors."""

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._parts: dict[Hashable, Callable[[], None]] = {}

    def active(self) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(self, part: Part) -> None:
        assert part.key not in self._parts, f"part {part.key!r} is recorded already"
        self._parts[part.key] = part.run
        if self._strict:
            with part.rehearsal():
                self.replay(part.key)

    def replay(self, key: Hashable) -> None:
        if self._strict:
            with _Births() as births:
                self._parts[key]()
            births.poison()
        else:
            self._parts[key]()

    def release(self) -> None:
        self._parts.clear()

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype)

    def mark(self) -> Wait:
        return _done


def _done() -> None:
    """A CPU is done when the call returns."""


class _Births(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers what operators made, so that what is left of it can be overwritten."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages = StoragePeak()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **kwargs or {})
        self._storages.observe(str(func), tensors_in((args, kwargs)), tensors_in(out))
        return out

    def poison(self) -> None:
        """Overwrites with 255 in every byte, which is NaN as a float and -1 or 255 as an integer."""
        for birth in self._storages.alive():
            storage = birth.storage()
            assert storage is not None
            torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).fill_(255)
