"""Tokenizes files one by one here, or several at once in worker processes; who asks cannot tell but by time.

Both ways hold a host-wide slot per file and end with the same bytes. A worker has one tokenizer, is replaced
after some files (tokenizers grow), and when it dies: its file is tried again on new ones, then named. Nothing
here knows cycles.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol

import trainer_core
from trainer_core.data.prepare.file_steps import Ended, FileKey, Started
from trainer_core.data.prepare.slots import Slots
from trainer_core.errors import DataUsedUp, DiskFull, NstrainError, Refused

FILES_PER_WORKER = 16
"""Files after which a worker is replaced by a new process."""

DEATHS = 3
"""Workers that may die over one file before it is named."""

_KINDS: dict[int, Callable[[list[str]], NstrainError]] = {
    Refused.exit_code: Refused,
    DiskFull.exit_code: lambda problems: DiskFull("\n".join(problems)),
    DataUsedUp.exit_code: lambda problems: DataUsedUp("\n".join(problems)),
}


class WorkerDied(RuntimeError):
    """Workers died again and again over one file."""


class Tokenizers(Protocol):
    """Takes files while it has room and tells which have ended."""

    def room(self) -> bool:
        """Whether another file may be started."""

    def busy(self) -> bool:
        """Whether a started file has not been told as ended."""

    def start(self, key: FileKey) -> None:
        """Begin a file; may take as long as the file takes."""

    def ended(self, seconds: float) -> list[Ended]:
        """Files that have ended, waiting at most this long for one."""

    def close(self) -> None:
        """End all work at once; files in work stay as if never begun."""


class Here:
    """Tokenizes in this process: `start` returns when the file is through."""

    def __init__(
        self, tokenize: Callable[[FileKey], object], slots: Slots, *, started: Started, leaving: Event
    ) -> None:
        self._tokenize = tokenize
        self._slots = slots
        self._started = started
        self._leaving = leaving
        self._ended: list[Ended] = []

    def room(self) -> bool:
        return not self._ended

    def busy(self) -> bool:
        return bool(self._ended)

    def start(self, key: FileKey) -> None:
        with self._slots.hold(self._leaving):
            self._started(key)
            error: NstrainError | OSError | None = None
            try:
                self._tokenize(key)
            except (NstrainError, OSError) as failure:
                error = failure
        self._ended.append(Ended(key=key, error=error))

    def ended(self, seconds: float) -> list[Ended]:
        found, self._ended = self._ended, []
        return found

    def close(self) -> None:
        self._ended.clear()


@dataclass(kw_only=True, eq=False)
class _Worker:
    """A worker process and the file it has."""

    process: subprocess.Popen[bytes]
    files: int = 0
    key: FileKey | None = None
    unread: bytes = b""
    answers: list[dict[str, object]] = field(default_factory=list)


class Workers:
    """Tokenizes in up to `count` processes, started as they are needed."""

    def __init__(self, root: Path, *, count: int, slots: int, lock_fd: int, started: Started) -> None:
        """`lock_fd` is the data line's lock; the workers share in holding it."""
        self._count = count
        self._lock_fd = lock_fd
        self._started = started
        self._command = [sys.executable, "-m", "trainer_core.data.prepare.worker"]
        self._command += [str(root), str(os.getpid()), str(slots)]
        self._workers: list[_Worker] = []
        self._deaths: dict[FileKey, int] = {}
        self._lost: list[Ended] = []
        self._selector = selectors.DefaultSelector()

    def room(self) -> bool:
        return sum(worker.key is not None for worker in self._workers) < self._count

    def busy(self) -> bool:
        return bool(self._lost) or any(worker.key is not None for worker in self._workers)

    def start(self, key: FileKey) -> None:
        idle = [worker for worker in self._workers if worker.key is None]
        worker = idle[0] if idle else self._hire()
        worker.key = key
        worker.files += 1
        assert worker.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; reading its answers says so
            worker.process.stdin.write(json.dumps(key).encode() + b"\n")
            worker.process.stdin.flush()

    def ended(self, seconds: float) -> list[Ended]:
        found, self._lost = self._lost, []
        for selected, _ in self._selector.select(0 if found else seconds):
            worker: _Worker = selected.data
            data = os.read(selected.fd, 1 << 16)
            if not data:
                self._bury(worker)
                continue
            *lines, worker.unread = (worker.unread + data).split(b"\n")
            found += [ended for line in lines if (ended := self._heard(worker, json.loads(line)))]
        found += self._lost
        self._lost = []
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in list(self._workers):
            self._dismiss(worker)
        self._selector.close()

    def _heard(self, worker: _Worker, answer: dict[str, object]) -> Ended | None:
        key = worker.key
        assert key is not None, answer
        if "started" in answer:
            self._started(key)
            return None
        worker.key = None
        error: NstrainError | None = None
        if "done" not in answer:
            code, problems = answer["code"], answer["problems"]
            assert isinstance(code, int) and isinstance(problems, list)
            error = _KINDS[code](problems)
        if worker.files >= FILES_PER_WORKER:
            self._dismiss(worker)
        return Ended(key=key, error=error)

    def _hire(self) -> _Worker:
        process = subprocess.Popen(
            self._command,
            cwd=Path(trainer_core.__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._lock_fd,),
        )
        worker = _Worker(process=process)
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        self._workers.append(worker)
        return worker

    def _dismiss(self, worker: _Worker) -> int:
        """End a worker and forget it; its exit code."""
        assert worker.process.stdin is not None and worker.process.stdout is not None
        self._workers.remove(worker)
        self._selector.unregister(worker.process.stdout)
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.close()
        code = worker.process.wait()
        worker.process.stdout.close()
        return code

    def _bury(self, worker: _Worker) -> None:
        """A worker is gone: its file goes to another one, or is given up."""
        key = worker.key
        code = self._dismiss(worker)
        if key is None:
            return
        self._deaths[key] = self._deaths.get(key, 0) + 1
        if self._deaths[key] < DEATHS:
            self.start(key)
            return
        source, path = key
        said = (
            f"{source}/{path}: {DEATHS} tokenizer processes died over it, the last one with {_ending(code)}"
        )
        self._lost.append(Ended(key=key, error=WorkerDied(said)))


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code} (its output says why)"
    return f"{signal.Signals(-code).name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
