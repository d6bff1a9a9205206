"""The backend of CUDA graphs: warm-up and capture on one stream with memory from the arena, then replays.

Owns the order of the calls and the promise that a capture that fails gives back exactly what it took. Graphs
never run at the same time and none reads what another left in the pool, so all of them share it.
"""

from __future__ import annotations

import traceback
from collections.abc import Hashable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from trainer_core.engine.backends.cuda_runtime import CudaRuntime, Graph
from trainer_core.engine.backends.protocol import Part, Wait
from trainer_core.gpu.arena import Arena

WARM_UPS = 2
"""Rehearsals before a capture: the first loads kernels and library handles, the second finds them loaded."""


class CudaGraphs:
    """Replay = one graph launch. The arena is held from the first capture to the release."""

    def __init__(self, cuda: CudaRuntime, arena: Arena) -> None:
        self._cuda = cuda
        self._arena = arena
        self._graphs: dict[Hashable, Graph] = {}

    def active(self) -> AbstractContextManager[None]:
        return self._cuda.active()

    def capture(self, part: Part) -> None:
        assert part.key not in self._graphs, f"part {part.key!r} is recorded already"
        try:
            # Backward passes run in this thread, so that their memory comes from the pool too.
            with self._cuda.active(), torch.autograd.set_multithreading_enabled(False):
                if not self._arena.is_held:
                    self._cuda.load()
                    self._arena.hold()
                self._warm_up(part)
                self._graphs[part.key] = self._record(part)
        except BaseException as error:
            # The frames that it went through keep the tensors of the part, and those would keep the arena.
            traceback.clear_frames(error.__traceback__)
            out_of_memory = isinstance(error, torch.OutOfMemoryError)
            refused = self._arena.does_not_fit(part.key) if out_of_memory else None
            if not self._graphs:
                self.release()
            if refused is not None:
                raise refused from error
            raise

    def replay(self, key: Hashable) -> None:
        self._graphs[key].replay()

    def release(self) -> None:
        if not self._arena.is_held:
            return
        self._cuda.synchronize()
        for graph in reversed(self._graphs.values()):
            graph.reset()
        self._graphs.clear()
        self._arena.release()

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        return self._cuda.host_buffer(size, dtype)

    def mark(self) -> Wait:
        return self._cuda.mark()

    def _warm_up(self, part: Part) -> None:
        with part.rehearsal(), self._arena.pool.serving():
            for _ in range(WARM_UPS):
                part.run()
        self._cuda.synchronize()

    def _record(self, part: Part) -> Graph:
        pool = self._arena.pool
        users = pool.users()
        graph = self._cuda.new_graph(pool)
        try:
            graph.begin()
            part.run()
            graph.end()
        except BaseException:
            graph.abandon()
            # Before torch releases a failed capture's hold on the pool itself, it would stay for ever.
            for _ in range(pool.users() - users):
                pool.drop_user()
            raise
        return graph
