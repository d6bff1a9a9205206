"""Waiting for room on a full disk, so that a preparer goes on by itself when somebody has made some.

What failed has left nothing half-made, so it is simply tried again: as soon as the bytes that the cycle is
expected to need are free, and anyway ever less often. One `disk_full` event per wait, `disk_free` at its end.
Nothing is deleted here.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from trainer_core.data.hub.waiting import Say
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.errors import DiskFull, Leaving, NstrainError
from trainer_core.line.events import record_event

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DiskPatience:
    """The times of a wait for room."""

    first_seconds: float = 5.0
    """Shortest time between two tries; the longest one doubles from here."""
    longest_seconds: float = 600.0
    """Longest time between two tries."""
    poll_seconds: float = 1.0
    """Time between two looks at the free bytes."""


def with_room(
    preparer: CyclePreparer,
    cycle: int,
    work: Callable[[], T],
    *,
    leaving: Event | None = None,
    say: Say = print,
    patience: DiskPatience = DiskPatience(),
) -> T:
    """Do `work` on a cycle, waiting for room as often as the disk is full. Raises Leaving out of a wait."""
    wait: _Wait | None = None
    while True:
        try:
            result = work()
        except DiskFull as full:
            wait = wait or _Wait(preparer, cycle, leaving or Event(), say, patience)
            wait.once(full)
            continue
        if wait is not None:
            wait.over()
        return result


class _Wait:
    def __init__(
        self, preparer: CyclePreparer, cycle: int, leaving: Event, say: Say, patience: DiskPatience
    ) -> None:
        self._preparer = preparer
        self._cycle = cycle
        self._leaving = leaving
        self._say = say
        self._patience = patience
        self._tries = 0
        self._began = time.monotonic()
        self._recorded = False

    def once(self, full: DiskFull) -> None:
        """Wait until trying again is worth it."""
        needed = self._needed()
        self._announce(str(full), needed)
        now = time.monotonic()
        earliest = now + self._patience.first_seconds
        latest = now + min(self._patience.first_seconds * 2.0**self._tries, self._patience.longest_seconds)
        self._tries = min(self._tries + 1, 32)
        while (now := time.monotonic()) < latest and not (now >= earliest and self._free() >= needed):
            if self._leaving.wait(min(self._patience.poll_seconds, latest - now)):
                raise Leaving(f"{self._root}: left while waiting for room; finished files stay")

    def over(self) -> None:
        """The work is done."""
        if self._recorded:
            seconds = round(time.monotonic() - self._began, 1)
            message = f"Cycle {self._cycle} goes on: there is room again, after {seconds:.0f} s"
            self._record("disk_free", message, seconds=seconds)

    @property
    def _root(self) -> Path:
        return self._preparer.paths.root

    def _needed(self) -> int:
        try:
            return self._preparer.bytes_needed(self._cycle)
        except (NstrainError, OSError):
            return 0

    def _free(self) -> int:
        return shutil.disk_usage(self._root).free

    def _announce(self, failure: str, needed: int) -> None:
        """Once per wait; on a disk without room for the row, at a later try."""
        free = self._free()
        message = (
            f"Cycle {self._cycle} waits for room: about {needed:,} bytes are needed, {free:,} are free on "
            f"the file system of {self._root}. Make room there, it goes on by itself: {failure}"
        )
        if not self._recorded:
            self._recorded = self._record("disk_full", message, needed_bytes=needed, free_bytes=free)

    def _record(self, kind: str, message: str, **details: Any) -> bool:
        self._say(message)
        try:
            record_event(self._preparer.paths.events, kind, message, cycle=self._cycle, **details)
        except DiskFull:
            return False
        return True
