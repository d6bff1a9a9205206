"""Copies between host and device that make neither wait: two slots up, a ring of slots down.

A slot is written again only after the copy that used it is done. On a CPU every wait is empty.
"""

from __future__ import annotations

from collections import deque

from torch import Tensor

from trainer_core.engine.backends.protocol import GraphBackend, Wait


class Upload:
    """Writes one static tensor of the device from the host."""

    def __init__(self, backend: GraphBackend, target: Tensor) -> None:
        self._backend = backend
        self._target = target
        self._slots: deque[tuple[Tensor, Wait]] = deque()
        for _ in range(2):
            slot = backend.host_buffer(target.numel(), target.dtype).view(target.shape)
            self._slots.append((slot, backend.mark()))

    def write(self, values: Tensor) -> None:
        """The target has the values for everything that is asked of the device from here on."""
        slot, wait = self._slots.popleft()
        wait()
        slot.copy_(values)
        self._target.copy_(slot, non_blocking=True)
        self._slots.append((slot, self._backend.mark()))


class Download:
    """Reads one static tensor of the device, each state of it, in order and as late as wanted."""

    def __init__(self, backend: GraphBackend, source: Tensor, depth: int) -> None:
        self._backend = backend
        self._source = source
        self._free = deque(backend.host_buffer(source.numel(), source.dtype) for _ in range(depth))
        self._pushed: deque[tuple[Tensor, Wait]] = deque()

    def __len__(self) -> int:
        """States that were pushed and not read."""
        return len(self._pushed)

    def push(self) -> None:
        """Keeps the state that the source has once what was asked of the device so far is done."""
        assert self._free, f"{len(self._pushed)} results are unread"
        slot = self._free.popleft()
        slot.copy_(self._source.flatten(), non_blocking=True)
        self._pushed.append((slot, self._backend.mark()))

    def pop(self) -> list[float]:
        """The oldest state that was not read yet; waits for it."""
        slot, wait = self._pushed.popleft()
        wait()
        self._free.append(slot)
        values: list[float] = slot.tolist()
        return values
