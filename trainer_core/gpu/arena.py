"""The arena: the memory of a GPU, held for the captures of one engine in one pool.

All that is free but a slack is taken in blocks as large as there are, and given to the pool's cache, where
every allocation of a warm-up or capture on the same stream finds it. A pool that takes memory from the driver
as it is asked for holds no block larger than the largest request so far; the requests of long rows and of
validation come later and are larger. The slack is for what is made outside torch's allocator while a graph is
captured, and for requests up to 1 MiB, which torch serves from segments of their own.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

from trainer_core.errors import AwaitingGPU, NstrainError, Refused
from trainer_core.gpu.devices import Devices, GpuMemory, Pool

GIB = 1 << 30

SLACK = 4 * GIB
"""Bytes that are not held."""

SMALLEST_BLOCK = 256 << 20
"""Memory in pieces smaller than this is not worth holding, and a GPU with none larger is in use."""

ROUNDING = 2 << 20
"""torch takes memory in multiples of this: a size that is none would take more than is free."""


class Arena:
    """What is held of one GPU. Opened and closed again and again; each time with what is then free."""

    def __init__(self, devices: Devices, gpu: int, *, slack: int = SLACK) -> None:
        self._devices = devices
        self._gpu = gpu
        self._slack = slack
        self._pool: Pool | None = None
        self._blocks: tuple[int, ...] = ()

    @property
    def is_held(self) -> bool:
        """Whether it holds memory."""
        return self._pool is not None

    @property
    def pool(self) -> Pool:
        """The pool of everything that is captured while the arena is held."""
        assert self._pool is not None, "the arena is not held"
        return self._pool

    @property
    def blocks(self) -> tuple[int, ...]:
        """Bytes of each block held, in the order in which they were taken."""
        return self._blocks

    def hold(self) -> None:
        """Takes all free memory but the slack, for allocations on the stream that is current now.

        Less is held where the memory is in pieces or another process is faster; what is held but not in use
        counts in no peak. AwaitingGPU when other processes leave less than a block, Refused when the GPU is
        too small without them.
        """
        assert self._pool is None, "the arena is held already"
        self._devices.give_back(self._gpu)
        self._pool = self._devices.open_pool(self._gpu)
        try:
            self._grow(self._pool)
            self._devices.forget_peak(self._gpu)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Gives everything back to the device; graphs that were captured in it must be gone."""
        if self._pool is None:
            return
        self._pool.close()
        self._pool, self._blocks = None, ()
        self._devices.give_back(self._gpu)

    def does_not_fit(self, key: Hashable) -> Refused:
        """Why the recording of a part ran out of memory, and the ways out."""
        memory = self._devices.memory(self._gpu)
        return Refused(
            f"{self._described()} has too little memory for the part {key!r}: {_gib(sum(self._blocks))} "
            f"are held for it of {_gib(memory.total)}{self._named(memory)}. Train with fewer rows in a "
            "micro-batch or recompute more (`nstrain tune` finds what fits), or free the GPU"
        )

    def _grow(self, pool: Pool) -> None:
        memory = self._devices.memory(self._gpu)
        left = memory.free - self._slack
        size, taken = left, []
        with pool.serving():
            while size >= SMALLEST_BLOCK:
                size -= size % ROUNDING
                try:
                    taken.append((size, self._devices.allocate(self._gpu, size)))
                except torch.OutOfMemoryError:
                    size //= 2
                    continue
                left -= size
                size = min(size, left)
        self._blocks = tuple(size for size, _ in taken)
        if not self._blocks:
            raise self._nothing_to_hold(memory)

    def _nothing_to_hold(self, memory: GpuMemory) -> NstrainError:
        wanted = self._slack + SMALLEST_BLOCK
        problem = (
            f"{self._described()} has {_gib(memory.free)} free of {_gib(memory.total)}; "
            f"the engine needs at least {_gib(wanted)}"
        )
        if memory.free + memory.others < wanted:
            state = f"{_gib(memory.ours)} hold the training state"
            return Refused(f"{problem}, and {state}: train a smaller model")
        return AwaitingGPU(f"{problem}{self._named(memory)}. End what is not needed there, or wait for it")

    def _described(self) -> str:
        return f"GPU {self._gpu} ({self._devices.name(self._gpu)})"

    def _named(self, memory: GpuMemory) -> str:
        """Who else is there, as the end of a clause."""
        named = [
            f"process {process.pid} ({process.name}) holds "
            + ("an unknown amount" if process.num_bytes is None else _gib(process.num_bytes))
            for process in self._devices.processes(self._gpu)
        ]
        return "; ".join([f", others hold {_gib(memory.others)}", *named])


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
