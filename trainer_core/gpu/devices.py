"""What is asked of a machine's GPUs beside computing: memory, pools of it, and who else is there.

A small protocol and torch's implementation of it. Nothing here decides anything: how much is held, and when
it is too little, is the arena's.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

SECONDS_TO_ASK = 30
"""A driver that does not name the processes within this names none."""


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """Bytes of a GPU's memory at one moment."""

    total: int
    """All of it."""
    free: int
    """What any process may take."""
    ours: int
    """What this process holds for tensors and pools."""

    @property
    def others(self) -> int:
        """The rest: other processes, and what drivers and libraries keep for each."""
        return self.total - self.free - self.ours


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """Another process with memory on a GPU."""

    pid: int
    """Its number, as the driver knows it."""
    name: str
    """Its program."""
    num_bytes: int | None
    """What it holds; None where the driver does not say."""


class Pool(Protocol):
    """A memory pool: what was taken for it serves only it, until nobody uses it and it is given back."""

    @property
    def id(self) -> tuple[int, int]:
        """Its name, for captures that are to use it."""
        ...

    def serving(self) -> AbstractContextManager[None]:
        """Allocations of this thread inside come from the pool."""
        ...

    def users(self) -> int:
        """How many hold the pool, its maker among them: its memory is kept as long as one does."""
        ...

    def drop_user(self) -> None:
        """Takes away one holder that will not do it itself."""
        ...

    def close(self) -> None:
        """Its maker holds it no longer."""
        ...


class Devices(Protocol):
    """The GPUs of a machine, by their number."""

    def name(self, gpu: int) -> str:
        """Its name, as the driver reports it."""
        ...

    def memory(self, gpu: int) -> GpuMemory:
        """Its memory now."""
        ...

    def processes(self, gpu: int) -> Sequence[GpuProcess]:
        """Other processes with memory on it, as far as they can be known."""
        ...

    def open_pool(self, gpu: int) -> Pool:
        """A new, empty pool."""
        ...

    def allocate(self, gpu: int, num_bytes: int) -> object:
        """Memory for work on the current stream, until the object is gone; torch.OutOfMemoryError."""
        ...

    def forget_peak(self, gpu: int) -> None:
        """The most that this process had in use is counted from now on."""
        ...

    def give_back(self, gpu: int) -> None:
        """Returns what this process took and nothing uses, pools that nobody holds included."""
        ...


class TorchPool:
    """torch.cuda.MemPool on one GPU."""

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        with torch.cuda.device(gpu):
            self._pool: torch.cuda.MemPool | None = torch.cuda.MemPool()

    @property
    def id(self) -> tuple[int, int]:
        return self._opened.id

    @contextmanager
    def serving(self) -> Iterator[None]:
        with torch.cuda.use_mem_pool(self._opened, self._gpu):
            yield

    def users(self) -> int:
        return self._opened.use_count()

    def drop_user(self) -> None:
        torch._C._cuda_releasePool(self._gpu, self.id)

    def close(self) -> None:
        self._pool = None

    @property
    def _opened(self) -> torch.cuda.MemPool:
        assert self._pool is not None, "the pool is closed"
        return self._pool


class TorchDevices:
    """Real GPUs."""

    def name(self, gpu: int) -> str:
        return torch.cuda.get_device_name(gpu)

    def memory(self, gpu: int) -> GpuMemory:
        free, total = torch.cuda.mem_get_info(gpu)
        return GpuMemory(total=total, free=free, ours=torch.cuda.memory_reserved(gpu))

    def processes(self, gpu: int) -> Sequence[GpuProcess]:
        uuid = str(torch.cuda.get_device_properties(gpu).uuid)
        query = "--query-compute-apps=gpu_uuid,pid,used_memory,process_name"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS_TO_ASK, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return ()
        return [process for process in processes_in(answer.stdout, uuid) if process.pid != os.getpid()]

    def open_pool(self, gpu: int) -> TorchPool:
        return TorchPool(gpu)

    def allocate(self, gpu: int, num_bytes: int) -> object:
        return torch.empty(num_bytes, dtype=torch.uint8, device=torch.device("cuda", gpu))

    def forget_peak(self, gpu: int) -> None:
        torch.cuda.reset_peak_memory_stats(gpu)

    def give_back(self, gpu: int) -> None:
        torch.cuda.synchronize(gpu)
        torch.cuda.empty_cache()


def processes_in(answer: str, uuid: str) -> list[GpuProcess]:
    """The processes of one GPU in nvidia-smi's lines of `gpu_uuid, pid, used_memory, process_name`."""
    found = []
    for line in answer.splitlines():
        gpu, pid, mebibytes, name = (field.strip() for field in line.split(",", 3))
        if gpu.removeprefix("GPU-") == uuid.removeprefix("GPU-"):
            known = int(mebibytes) << 20 if mebibytes.isdigit() else None
            found.append(GpuProcess(pid=int(pid), name=name, num_bytes=known))
    return found
