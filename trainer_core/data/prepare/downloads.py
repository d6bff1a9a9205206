"""Downloads the raw files of hub sources on threads, never more bytes at once than a budget.

A file counts with its whole size from the moment its download begins until it is discarded, and so does one
that an earlier process left; one file larger than the budget is downloaded when nothing else is here. Raw
files that nobody wants (any more) are deleted at the start. Never reads a file.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from trainer_core.data.files.source_files import SourceFiles
from trainer_core.data.prepare.file_steps import Ended, FileKey, Started
from trainer_core.data.prepare.slots import Slots


class Downloads:
    """The downloads of one step: `fill` begins what fits, `ended` tells what is through."""

    def __init__(
        self,
        sources: SourceFiles,
        wanted: Sequence[FileKey],
        *,
        budget_bytes: int,
        threads: int,
        slots: Slots,
        started: Started,
        stop: Event,
    ) -> None:
        """`stop` ends downloads and waits for slots; `sources` listens to the same event."""
        self._sources = sources
        self._budget = budget_bytes
        self._threads = threads
        self._slots = slots
        self._started = started
        self._stop = stop
        self._sizes = {key: sources.pinned(*key).size for key in wanted}
        self._held: dict[FileKey, int] = {}
        for key in sources.held():
            if key in self._sizes:
                self._held[key] = self._sizes[key]
            else:
                sources.discard(*key)
        # What lies here takes room until it is used, so it comes first.
        self._waiting = sorted(wanted, key=lambda key: key not in self._held)
        self._running = 0
        self._done: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="download") if wanted else None

    def fill(self) -> None:
        """Begin downloads while there are threads and room; not after `stop`."""
        while self._waiting and self._running < self._threads and not self._stop.is_set():
            key = self._waiting[0]
            others = sum(size for other, size in self._held.items() if other != key)
            if others and others + self._sizes[key] > self._budget:
                return
            self._waiting.pop(0)
            self._held[key] = self._sizes[key]
            self._running += 1
            assert self._pool is not None
            self._pool.submit(self._fetch, key)

    def busy(self) -> bool:
        """Whether a begun download has not been told as ended."""
        return self._running > 0

    def unfinished(self) -> bool:
        """Whether files are still to come."""
        return self._running > 0 or bool(self._waiting)

    def drop(self) -> None:
        """Begin no further download; what is under way goes on."""
        self._waiting.clear()

    def ended(self, seconds: float) -> list[Ended]:
        """Downloads that are through, waiting at most this long for one."""
        found: list[Ended] = []
        try:
            while True:
                found.append(self._done.get(timeout=0 if found else seconds))
        except queue.Empty:
            self._running -= len(found)
            return found

    def discard(self, key: FileKey) -> None:
        """The file's tokens are kept: its raw bytes can go, and make room."""
        if key in self._held:
            self._sources.discard(*key)
            del self._held[key]

    def close(self) -> None:
        """Wait for the threads; with `stop` set they end soon, and parts of files stay for the next try."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _fetch(self, key: FileKey) -> None:
        error: BaseException | None = None
        try:
            with self._slots.hold(self._stop):
                self._started(key)
                self._sources.fetch(*key)
        except BaseException as failure:  # handed to the thread that asks
            error = failure
        self._done.put(Ended(key=key, error=error))
