"""The state of one moment in the host's memory: allocated and touched at the start, filled at a boundary.

A copy into memory that was never written to costs several times a copy into memory that was, and page-locked
memory lets a device copy without the host waiting. Owns the buffers; what becomes of them is the writer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from trainer_core.engine.backends.protocol import Wait

PIECE_BYTES = 64 * 1024 * 1024
"""A power of two, which torch rounds page-locked memory up to: larger buffers would waste up to half."""


class Host(Protocol):
    """What a snapshot needs of the engine's backend (see `GraphBackend`)."""

    def active(self) -> AbstractContextManager[None]:
        """Copies inside come after every update that was asked for, and before the next one."""
        ...

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        """Zeroed memory of the host that the device copies to without making the host wait."""
        ...

    def mark(self) -> Wait:
        """Marks the present end of what was asked of the device."""
        ...


class Snapshot:
    """Copies of flat tensors, each in consecutive pieces."""

    def __init__(self, live: Mapping[str, Tensor], host: Host) -> None:
        """`live` are flat tensors by name, which keep their storage."""
        self._host = host
        self._copies = {
            name: [(part, host.host_buffer(part.numel(), part.dtype)) for part in _pieces(tensor)]
            for name, tensor in live.items()
        }

    def take(self) -> Wait:
        """Copy the live tensors as they are after every update that was asked for.

        The live tensors may be updated again at once; the pieces are complete when the result returns.
        """
        with self._host.active():
            for copies in self._copies.values():
                for part, buffer in copies:
                    buffer.copy_(part, non_blocking=True)
            return self._host.mark()

    def pieces(self) -> dict[str, Sequence[Tensor]]:
        """The copies by name; they are written again by the next `take`."""
        return {name: [buffer for _, buffer in copies] for name, copies in self._copies.items()}


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    return torch.split(tensor, PIECE_BYTES // tensor.element_size())
