"""Source files to tokenized files: downloads ahead within a budget, tokenizers beside them, raw files away.

One step works through a list of files and reports each. A raw file is deleted once its tokens are published
under open/. Whatever is raised, finished files stay and unfinished ones are as if never begun, so the next
call goes on from there; the bytes depend neither on the number of workers nor on the order. Knows no cycle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Literal

from trainer_core.data.prepare.disk_bound import RAW_BUDGET_BYTES
from trainer_core.data.prepare.downloads import Downloads
from trainer_core.data.prepare.file_steps import Ended, FileKey, FileStep, Report
from trainer_core.data.prepare.pool import Here, Tokenizers, Workers
from trainer_core.data.prepare.slots import Slots
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.errors import Leaving, Refused
from trainer_core.host import load_host

_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is done at once."""

    downloads: int
    """Files downloaded at once; slots of the host."""
    tokenizers: int
    """Files tokenized at once; slots of the host."""
    raw_bytes: int = RAW_BUDGET_BYTES
    """Bytes of downloaded files that may lie here at once; a single larger file may lie here alone."""
    here_bytes: int = 32 << 20
    """Work on fewer bytes of raw files is done in this process: starting others takes longer."""

    @classmethod
    def of_host(cls) -> Effort:
        """What the host settings allow."""
        limits = load_host().limits
        return cls(downloads=limits.download, tokenizers=limits.tokenize)


class FileWork:
    """Downloads and tokenizes files of one data line, whose lock the caller holds."""

    def __init__(
        self, root: Path, files: OpenFiles, *, effort: Effort, report: Report, leaving: Event, stop: Event
    ) -> None:
        """`leaving` is the caller's wish to end; `stop` is ours, and `files.sources` listens to it."""
        self._root = root
        self._files = files
        self._effort = effort
        self._report = report
        self._leaving = leaving
        self._stop = stop
        self._told = threading.Lock()

    def download(self, files: Sequence[FileKey]) -> list[FileKey]:
        """Compare the files of folders, download those of hubs as far as the budget goes; which are here.

        Raises Refused naming every file that is wrong.
        """
        here: list[FileKey] = []
        problems: list[str] = []
        with self._downloads(files) as downloads:
            downloads.fill()
            for key in self._of_folders(files):
                self._check_leaving()
                self._sort(self._compare(key), "download", here, problems)
            while downloads.busy():
                self._check_leaving()
                for ended in downloads.ended(_POLL_SECONDS):
                    self._sort(ended, "download", here, problems)
                if problems:
                    self._give_up(downloads)
                downloads.fill()
        if problems:
            raise Refused(problems)
        return here

    def tokenize(self, files: Sequence[FileKey], lock_fd: int) -> None:
        """Tokenize every file, downloading on meanwhile. Raises Refused naming every file that is wrong."""
        problems: list[str] = []
        ready = deque(self._of_folders(files))
        done: list[FileKey] = []
        with self._downloads(files) as downloads, self._tokenizers(files, lock_fd) as tokenizers:
            while ready or downloads.unfinished() or tokenizers.busy():
                self._check_leaving()
                downloads.fill()
                while ready and tokenizers.room() and not problems:
                    tokenizers.start(ready.popleft())
                idle = not ready and not tokenizers.busy()
                for ended in downloads.ended(_POLL_SECONDS if idle else 0.0):
                    self._sort(ended, "download", ready, problems)
                for ended in tokenizers.ended(_POLL_SECONDS):
                    self._sort(ended, "tokenize", done, problems)
                    if ended.error is None:
                        downloads.discard(ended.key)
                if problems:
                    ready.clear()
                    self._give_up(downloads)
        if problems:
            raise Refused(problems)

    def _of_folders(self, files: Sequence[FileKey]) -> list[FileKey]:
        return [key for key in files if not self._files.sources.is_hub(key[0])]

    def _compare(self, key: FileKey) -> Ended:
        self._tell("download", key, "started")
        try:
            self._files.sources.fetch(*key)
        except Refused as error:
            return Ended(key=key, error=error)
        return Ended(key=key, error=None)

    def _sort(
        self,
        ended: Ended,
        step: Literal["download", "tokenize"],
        here: list[FileKey] | deque[FileKey],
        problems: list[str],
    ) -> None:
        """Put a file where it belongs; an error that is not about the file itself is raised."""
        self._tell(step, ended.key, "done" if ended.error is None else "failed", str(ended.error or ""))
        if ended.error is None:
            here.append(ended.key)
        elif isinstance(ended.error, Refused):
            problems += ended.error.problems
        elif not (problems and isinstance(ended.error, Leaving)):
            raise ended.error

    def _give_up(self, downloads: Downloads) -> None:
        """Something is wrong that no waiting mends: begin nothing, and let no download wait for hours."""
        downloads.drop()
        self._stop.set()

    def _check_leaving(self) -> None:
        if self._leaving.is_set():
            raise Leaving(f"{self._root}: left on request; finished files stay")

    def _tell(
        self,
        step: Literal["download", "tokenize"],
        key: FileKey,
        state: Literal["started", "done", "failed"],
        message: str = "",
    ) -> None:
        with self._told:
            self._report(FileStep(step=step, source=key[0], path=key[1], state=state, message=message))

    @contextmanager
    def _downloads(self, files: Sequence[FileKey]) -> Iterator[Downloads]:
        downloads = Downloads(
            self._files.sources,
            [key for key in files if self._files.sources.is_hub(key[0])],
            budget_bytes=self._effort.raw_bytes,
            threads=self._effort.downloads,
            slots=Slots("download", self._effort.downloads),
            started=lambda key: self._tell("download", key, "started"),
            stop=self._stop,
        )
        try:
            yield downloads
        except BaseException:
            self._stop.set()
            raise
        finally:
            downloads.close()
            self._stop.clear()

    @contextmanager
    def _tokenizers(self, files: Sequence[FileKey], lock_fd: int) -> Iterator[Tokenizers]:
        size = sum(self._files.pinned(*key).size for key in files)
        slots = self._effort.tokenizers

        def started(key: FileKey) -> None:
            self._tell("tokenize", key, "started")

        tokenizers: Tokenizers = (
            Here(
                lambda key: self._files.tokenize(*key),
                Slots("tokenize", slots),
                started=started,
                leaving=self._leaving,
            )
            if size < self._effort.here_bytes
            else Workers(
                self._root, count=min(slots, len(files)), slots=slots, lock_fd=lock_fd, started=started
            )
        )
        try:
            yield tokenizers
        finally:
            tokenizers.close()
