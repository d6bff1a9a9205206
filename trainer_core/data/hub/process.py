"""The processes that speak to a hub (`hub_child`), as seen from here: started, kept, and ended when stuck.

Owns the watchdog. Never decides whether a failure is tried again. Invariant: a process that is asked is asked
by one thread only, and one that did not answer is never used again.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer_core.data.hub.waiting import Patience

_NOT_PASSED_ON = ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_XET")
"""What each request says anew, or what the process is started for."""

_START_SECONDS = 120.0


class _Child:
    """One process; `xet` is whether it may use that protocol."""

    def __init__(self, xet: bool) -> None:
        self.xet = xet
        self.ready = False
        environment = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON}
        environment |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
        if not xet:
            environment["HF_HUB_DISABLE_XET"] = "1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainer_core.data.hub.child", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """Its answer, or None when it has none yet. Raises ValueError when it ended without one."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return None
        value: dict[str, Any] = json.loads(self.process.stdout.readline())
        return value

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what it did not read is lost with it
                pipe.close()


_idle: list[_Child] = []
_lock = threading.Lock()


def ask(
    request: dict[str, Any],
    *,
    xet: bool,
    watched: Sequence[Path],
    patience: Patience,
    check: Callable[[], None],
) -> dict[str, Any]:
    """One try of one thing. A process that stalls or dies answers with the kind `stalled` or `died`.

    `watched` are the files and folders that grow while it works; `check` may raise to break it off.
    """
    child = _take(xet)
    try:
        if not child.ready:
            _start(child, patience, check)
        child.send(request)
        answer = _watch(child, watched, patience, check, patience.watchdog_seconds)
    except (BrokenPipeError, ValueError):
        kind = "died" if child.ready else "failed"
        answer = {"kind": kind, "message": "the process that downloads ended"}
    except BaseException:
        child.end()
        raise
    if answer["kind"] in ("stalled", "died") or not child.ready:
        child.end()
    else:
        with _lock:
            _idle.append(child)
    return answer


def end_idle() -> None:
    """End the processes that nobody uses."""
    with _lock:
        children, _idle[:] = list(_idle), []
    for child in children:
        child.end()


def _forget() -> None:
    """In a forked process: the processes are its parent's."""
    global _lock
    _idle.clear()
    _lock = threading.Lock()


atexit.register(end_idle)
os.register_at_fork(after_in_child=_forget)


def _take(xet: bool) -> _Child:
    with _lock:
        for child in [child for child in _idle if child.process.poll() is not None]:
            _idle.remove(child)  # it left by itself
            child.end()
        for child in _idle:
            if child.xet == xet:
                _idle.remove(child)
                return child
    return _Child(xet)


def _start(child: _Child, patience: Patience, check: Callable[[], None]) -> None:
    """Wait until it has loaded what it needs, which is not the hub's fault."""
    answer = _watch(child, (), patience, check, _START_SECONDS)
    if answer["kind"] != "ready":
        raise ValueError(answer)
    child.ready = True


def _watch(
    child: _Child,
    watched: Sequence[Path],
    patience: Patience,
    check: Callable[[], None],
    longest_seconds: float,
) -> dict[str, Any]:
    seen, since = _grown(watched), time.monotonic()
    while (answer := child.answer(patience.poll_seconds)) is None:
        check()
        grown = _grown(watched)
        if grown != seen:
            seen, since = grown, time.monotonic()
        elif time.monotonic() - since > longest_seconds:
            return {"kind": "stalled", "message": f"no byte for {longest_seconds:g} s"}
    return answer


def _grown(watched: Sequence[Path]) -> int:
    """A number that changes when a watched file, or one below a watched folder, grows."""
    total = 0
    for path in watched:
        for file in (path, *path.rglob("*")):
            try:
                status = os.stat(file)
            except FileNotFoundError:
                continue  # renamed or removed meanwhile
            total += status.st_size + status.st_blocks
    return total
