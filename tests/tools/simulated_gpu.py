"""A GPU's memory without a GPU: addresses, holes, pools that cache as torch's do, and other processes.

What is modelled is what the arena is built on: an allocation needs one hole that is large enough; a pool
serves a request from the smallest hole that fits, of segments that were taken for work on the same stream,
and takes a new segment only when none does; a pool's memory returns to the device when nobody holds the pool
and the cache is given back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from trainer_core.gpu.devices import GpuMemory, GpuProcess

GIB = 1 << 30
MIB = 1 << 20


class Space:
    """Addresses from 0 to `size`, of which holes are free."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._holes = [(0, size)]

    @property
    def free(self) -> int:
        return sum(size for _, size in self._holes)

    def fit(self, size: int) -> int | None:
        """Size of the smallest hole that takes `size`."""
        return min((hole for _, hole in self._holes if hole >= size), default=None)

    def take(self, size: int) -> int | None:
        """Address of `size` bytes at the start of the smallest hole that takes them."""
        best = self.fit(size)
        if best is None:
            return None
        at = next(at for at, hole in self._holes if hole == best)
        self._holes.remove((at, best))
        if best > size:
            self._holes.append((at + size, best - size))
        return at

    def give(self, at: int, size: int) -> None:
        """Frees bytes, as one hole with those around them."""
        merged: list[tuple[int, int]] = []
        for start, length in sorted([*self._holes, (at, size)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                assert not merged or sum(merged[-1]) < start, "freed twice"
                merged.append((start, length))
        self._holes = merged


class Block:
    """Allocated memory, until the object is gone."""

    def __init__(self, space: Space, at: int, size: int) -> None:
        self._space, self._at, self._size = space, at, size

    def __del__(self) -> None:
        self._space.give(self._at, self._size)


@dataclass(frozen=True)
class Segment:
    """What a pool took from the device at once."""

    at: int
    stream: str
    space: Space


class SimulatedPool:
    """A pool of the simulated GPU; `num_users` counts its maker and graphs."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self.segments: list[Segment] = []
        self.num_users = 1
        self.id = (0, len(gpu.pools) + 1)

    @contextmanager
    def serving(self) -> Iterator[None]:
        self._gpu.log.append("pool on")
        try:
            with self.routed():
                yield
        finally:
            self._gpu.log.append("pool off")

    @contextmanager
    def routed(self) -> Iterator[None]:
        """What a capture into the pool does with allocations, which no call of ours asks for."""
        outer, self._gpu.current = self._gpu.current, self
        try:
            yield
        finally:
            self._gpu.current = outer

    def users(self) -> int:
        return self.num_users

    def drop_user(self) -> None:
        self._gpu.log.append("drop user")
        self.num_users -= 1

    def close(self) -> None:
        self._gpu.log.append("close pool")
        self.num_users -= 1

    def allocate(self, size: int) -> Block:
        stream = self._gpu.stream
        spaces = [segment.space for segment in self.segments if segment.stream == stream]
        fits = [space for space in spaces if space.fit(size) is not None]
        space = min(fits, key=lambda space: space.fit(size) or 0, default=None)
        if space is None:
            space = Space(size)
            self.segments.append(Segment(self._gpu.take(size), stream, space))
        at = space.take(size)
        assert at is not None
        return Block(space, at, size)


class SimulatedGpu:
    """GPU 0 of a machine that has one."""

    def __init__(self, total: int = 16 * GIB, log: list[str] | None = None) -> None:
        self.log: list[str] = [] if log is None else log
        self.space = Space(total)
        self.pools: list[SimulatedPool] = []
        self.current: SimulatedPool | None = None
        self.stream = "default"
        self.listed: list[GpuProcess] = []
        self._outside = 0
        self.refused: list[int] = []
        """Sizes of the requests that found no memory."""

    def other_process(self, pid: int, size: int, *, name: str = "python", listed: bool = True) -> Block:
        """Another process takes memory, until the block is gone; the driver names it if `listed`."""
        at = self.space.take(size)
        assert at is not None
        if listed:
            self.listed.append(GpuProcess(pid=pid, name=name, num_bytes=size))
        return Block(self.space, at, size)

    def tensor(self, size: int) -> Block:
        """Memory of this process outside every pool."""
        self._outside += size
        return Block(self.space, self.take(size), size)

    def take(self, size: int) -> int:
        """What the driver does for a request."""
        at = self.space.take(size)
        if at is None:
            self.refused.append(size)
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        return at

    @property
    def held(self) -> int:
        """Bytes in pools."""
        return sum(segment.space.size for pool in self.pools for segment in pool.segments)

    def name(self, gpu: int) -> str:
        return "Simulated 16GB"

    def memory(self, gpu: int) -> GpuMemory:
        return GpuMemory(total=self.space.size, free=self.space.free, ours=self.held + self._outside)

    def processes(self, gpu: int) -> Sequence[GpuProcess]:
        return self.listed

    def open_pool(self, gpu: int) -> SimulatedPool:
        self.log.append("open pool")
        pool = SimulatedPool(self)
        self.pools.append(pool)
        return pool

    def allocate(self, gpu: int, num_bytes: int) -> Block:
        if self.current is None:
            return self.tensor(num_bytes)
        return self.current.allocate(num_bytes)

    def forget_peak(self, gpu: int) -> None:
        self.log.append("forget peak")

    def give_back(self, gpu: int) -> None:
        self.log.append("give back")
        for pool in self.pools:
            if pool.num_users == 0:
                for segment in [s for s in pool.segments if s.space.free == s.space.size]:
                    self.space.give(segment.at, segment.space.size)
                    pool.segments.remove(segment)
