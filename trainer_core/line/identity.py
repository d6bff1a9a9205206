"""Who a process is: pid, start time and boot id, so that a reused pid is never taken for its predecessor."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


def boot_id() -> str:
    """Identifier of this boot of the host; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Start of a live process in clock ticks since boot, exact and unaffected by clock changes.

    None for a process that does not exist or has exited and waits for its parent (zombie).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return _start_time_portable(pid)
    return None if fields[0] in "ZX" else fields[19]


def _start_time_portable(pid: int) -> str | None:
    """For systems without /proc: psutil's start time, rounded to a hundredth of a second."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return None


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process of this host, recognisable after its end and after a reboot."""

    pid: int
    """Process id."""
    start_time: str
    """Start time as the kernel counts it (clock ticks since boot)."""
    boot_id: str
    """Boot of the host in which the process was started."""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Identity of a live process, or None."""
        start = _start_time(pid)
        return None if start is None else cls(pid=pid, start_time=start, boot_id=boot_id())

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Identity of this process."""
        own = cls.of(os.getpid())
        assert own is not None
        return own

    @classmethod
    def from_dict(cls, value: Any) -> ProcessIdentity | None:
        """Read what `to_dict` wrote; None when it is not such a record."""
        try:
            return cls(
                pid=int(value["pid"]), start_time=str(value["start_time"]), boot_id=str(value["boot_id"])
            )
        except (TypeError, KeyError, ValueError):
            return None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return asdict(self)

    def alive(self) -> bool:
        """Whether this very process still runs (same boot, same start time, not a zombie)."""
        return ProcessIdentity.of(self.pid) == self
