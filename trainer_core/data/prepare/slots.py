"""Named limits of a host: how many processes may download or tokenize at once, over all lines.

A slot is a file that the kernel locks for whoever works: `~/.nstrain/limits/<name>.<number>`. It is free
again the moment its holder ends, however that happens, and no server is asked, so no outage can block a slot
or leak one. Who finds none free waits; nothing here counts, queues or is fair.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from trainer_core.errors import Leaving
from trainer_core.host import state_dir

_FIRST_SECONDS = 0.02
_LONGEST_SECONDS = 0.5


class Slots:
    """The slots of one name on this host."""

    def __init__(self, name: str, count: int, *, folder: Path | None = None) -> None:
        """`count` slots; another process that reads other settings may see more or fewer of the same ones."""
        assert count >= 1, count
        self._name = name
        self._count = count
        self._folder = folder or state_dir() / "limits"

    @contextmanager
    def hold(self, leaving: Event | None = None) -> Iterator[None]:
        """Hold one slot, waiting for it as long as it takes. Raises Leaving when `leaving` is set first."""
        self._folder.mkdir(parents=True, exist_ok=True)
        leaving, seconds = leaving or Event(), _FIRST_SECONDS
        while (fd := self._take()) is None:
            if leaving.wait(seconds):
                raise Leaving(f"left while waiting for one of {self._count} {self._name} slots")
            seconds = min(2 * seconds, _LONGEST_SECONDS)
        try:
            yield
        finally:
            os.close(fd)

    def _take(self) -> int | None:
        for number in range(self._count):
            path = self._folder / f"{self._name}.{number}"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            except BaseException:
                os.close(fd)
                raise
            return fd
        return None
