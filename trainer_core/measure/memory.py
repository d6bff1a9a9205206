"""How much memory a device has, what this process took of it, and which errors say that it is used up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from trainer_core.errors import Refused


def total_and_free(device: torch.device) -> tuple[int, int]:
    """Bytes of the device's memory, and what of them is free beside this process."""
    if device.type == "cuda":
        torch.zeros(1, device=device)  # what every process takes for itself is not free
        free, total = torch.cuda.mem_get_info(device)
        return total, free
    memory = proc_sizes("meminfo")
    return memory["MemTotal"], memory["MemAvailable"]


def proc_sizes(name: str) -> dict[str, int]:
    """The sizes in a file of /proc, in bytes."""
    lines = Path("/proc", name).read_text(encoding="utf-8").splitlines()
    words = [line.split() for line in lines if line.endswith(" kB")]
    return {key.rstrip(":"): 1024 * int(value) for key, value, _ in words}


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was used up."""
    if any(isinstance(e, MemoryError | torch.OutOfMemoryError) for e in (error, error.__cause__)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        phrase in text for phrase in ("can't allocate memory", "not enough memory", "out of memory")
    )


@contextmanager
def memory_refused() -> Iterator[None]:
    """Inside, an error that says that memory was used up becomes Refused."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise Refused("out of memory: take fewer rows (--rows), or shorter ones (--seq-len)") from error
