"""Sizes of this process in memory, as the kernel counts them: for tests that measure in a child."""

from pathlib import Path


def resident(name: str) -> int:
    """Bytes of a size in /proc/self/status: VmRSS now, VmHWM at the most.

    Not getrusage: its figure starts at what the parent held when it made this process.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
