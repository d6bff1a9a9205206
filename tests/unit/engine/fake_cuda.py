"""A GPU for tests: it writes down every call, and its graphs really replay, on the CPU.

A graph is a tape of operator calls with the tensors they had. Replaying runs the calls on those tensors, so
a number that the host put in at capture stays what it was, which is the fault that a closure would hide. As
on a GPU, capturing changes no tensor, reading a value breaks it, and temporaries are void after a replay.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tools.simulated_gpu import SimulatedGpu, SimulatedPool
from trainer_core.engine.backends.cuda_graphs import CudaGraphs
from trainer_core.engine.backends.storage_peak import tensors_in
from trainer_core.gpu.arena import Arena


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class Tape(TorchDispatchMode):
    """Records calls, undoes what they did to tensors from outside, and runs them again."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []
        self.broken = False
        self._born: dict[int, Tensor] = {}
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output in func.tags:
            self.broken = True
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors_in(args[i] if i < len(args) else kwargs.get(argument.name)):
                    if _key(tensor) not in self._born and _key(tensor) not in self._before:
                        self._before[_key(tensor)] = (_bytes(tensor), _bytes(tensor).clone())
        out = func(*args, **kwargs)
        known = {_key(tensor) for tensor in tensors_in((args, kwargs))}
        fresh = [t if _key(t) not in known else None for t in tensors_in(out)]
        self._born |= {_key(t): t for t in fresh if t is not None}
        self.calls.append((func, args, kwargs, fresh))
        return out

    def undo(self) -> None:
        for tensor, before in self._before.values():
            tensor.copy_(before)
        self._spoil()

    @torch.no_grad()
    def run(self) -> None:
        for func, args, kwargs, fresh in self.calls:
            for kept, new in zip(fresh, tensors_in(func(*args, **kwargs)), strict=True):
                if kept is not None:
                    kept.copy_(new)
        self._spoil()

    def _spoil(self) -> None:
        for tensor in self._born.values():
            _bytes(tensor).fill_(255)


class FakeGraph:
    def __init__(self, cuda: FakeCuda, pool: SimulatedPool) -> None:
        self._cuda, self._pool, self._tape = cuda, pool, Tape()
        self._recording = ExitStack()
        self._holds = False

    def begin(self) -> None:
        self._cuda.log.append("begin")
        self._pool.num_users += 1
        self._holds = True
        self._recording.enter_context(self._pool.routed())
        self._recording.callback(self._tape.undo)
        self._recording.enter_context(self._tape)

    def end(self) -> None:
        self._cuda.log.append("end")
        self._recording.close()
        if self._tape.broken or self._cuda.breaks_at_end:
            self._tape.broken = True
            raise RuntimeError("the capture was invalidated")

    def replay(self) -> None:
        self._cuda.log.append("replay")
        self._tape.run()

    def reset(self) -> None:
        self._cuda.log.append("reset")
        if self._holds:
            self._pool.num_users -= 1
        self._holds = False

    def abandon(self) -> None:
        self._cuda.log.append("abandon")
        self._recording.close()
        if self._holds and (not self._tape.broken or self._cuda.unwinds):
            self._pool.num_users -= 1
        self._holds = False


class FakeCuda:
    """`unwinds`: torch gives up a broken capture's hold on the pool itself, as its newer versions do."""

    def __init__(self, *, unwinds: bool = True, gpu: SimulatedGpu | None = None) -> None:
        self.unwinds = unwinds
        self.breaks_at_end = False
        self.gpu = gpu or SimulatedGpu()
        self.log = self.gpu.log

    @property
    def users(self) -> int:
        """Holders of every pool there is."""
        return sum(pool.num_users for pool in self.gpu.pools)

    def graphs(self) -> CudaGraphs:
        """A backend on this GPU."""
        return CudaGraphs(self, Arena(self.gpu, 0))

    @contextmanager
    def active(self):
        outer, self.gpu.stream = self.gpu.stream, "step"
        try:
            yield
        finally:
            self.gpu.stream = outer

    def load(self) -> None:
        self.log.append("load")
        assert self.gpu.stream == "step"

    def new_graph(self, pool: SimulatedPool) -> FakeGraph:
        assert self.gpu.stream == "step"
        return FakeGraph(self, pool)

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype)

    def mark(self):
        return lambda: None
