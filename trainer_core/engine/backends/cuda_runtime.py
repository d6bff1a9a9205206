"""What the graph backend needs of a GPU, as a small protocol, and torch's implementation of it.

Nothing here decides anything: the order of the calls is the backend's, and tests give it a runtime that
records them. One stream carries all work of a step; the memory comes from a pool of the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

import torch
from torch import Tensor

from trainer_core.engine.backends.protocol import Wait
from trainer_core.gpu.devices import Pool


class Graph(Protocol):
    """One captured part."""

    def begin(self) -> None:
        """Starts recording the stream, with memory from the pool."""
        ...

    def end(self) -> None:
        """Ends the recording and makes it executable."""
        ...

    def replay(self) -> None:
        """Puts the recorded work on the stream."""
        ...

    def reset(self) -> None:
        """Frees the recording; it holds the pool no longer."""
        ...

    def abandon(self) -> None:
        """Ends a recording that failed at any point, and frees it."""
        ...


class CudaRuntime(Protocol):
    """A GPU with one stream."""

    def active(self) -> AbstractContextManager[None]:
        """Work inside goes to the stream: after what was asked for before, before what comes later."""
        ...

    def load(self) -> None:
        """Makes what libraries keep for the stream, so that no pool is asked for it."""
        ...

    def new_graph(self, pool: Pool) -> Graph:
        """An empty graph over the stream and a pool."""
        ...

    def synchronize(self) -> None:
        """Waits until the device is idle."""
        ...

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        """Zeroed page-locked memory of the host."""
        ...

    def mark(self) -> Wait:
        """Marks the present end of the stream's work."""
        ...


class TorchGraph:
    """torch.cuda.CUDAGraph over a given pool."""

    def __init__(self, pool: Pool, device: torch.device) -> None:
        self._graph, self._pool, self._device = torch.cuda.CUDAGraph(), pool, device

    def begin(self) -> None:
        # thread_local: a checkpoint's writer thread may query events and pin memory meanwhile
        self._graph.capture_begin(self._pool.id, "thread_local")  # type: ignore[arg-type]

    def end(self) -> None:
        self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()

    def reset(self) -> None:
        self._graph.reset()

    def abandon(self) -> None:
        # Which of these are left to do depends on where the capture broke and on torch's version: what has
        # been done already answers with an error.
        with suppress(RuntimeError):
            self._graph.capture_end()
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool.id)
        self._graph.reset()


class TorchCuda:
    """A real GPU."""

    def __init__(self, device: torch.device) -> None:
        assert device.index is not None, device
        self._device = device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        _override_stale_streams()(True)

    @contextmanager
    def active(self) -> Iterator[None]:
        outer = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            outer.wait_stream(self._stream)

    def load(self) -> None:
        with torch.cuda.stream(self._stream):
            # The matrix library keeps a workspace for each stream.
            for dtype in (torch.float32, torch.bfloat16):
                square = torch.ones(16, 16, device=self._device, dtype=dtype)
                torch.addmm(square[0], square, square)
        self.synchronize()

    def new_graph(self, pool: Pool) -> TorchGraph:
        return TorchGraph(pool, self._device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype, pin_memory=True)

    def mark(self) -> Wait:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event.synchronize


def _override_stale_streams() -> Callable[[bool], None]:
    """torch's switch that moves gradient accumulation from the stream of the warm-up to that of the capture.

    Newer than the oldest torch we run on; without it both are one stream here, which is all it is for.
    """
    switch: Callable[[bool], None] = getattr(
        torch.autograd.graph, "set_override_stale_capture_stream", lambda enabled: None
    )
    return switch
