"""`nstrain down`: running lines are asked for a checkpoint, then the workers end, then the server.

Only recorded processes and what they started are ended. A trainer is never killed: it lives in a session of
its own and, when its flow is gone, writes a checkpoint at its next update and ends by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from deployments.api import Api, ApiError, Unreachable
from deployments.home import Home, ServerRecord, read_record, write_record
from deployments.processes import Descendant, descendants, end, wait_gone
from trainer_core.errors import Refused
from trainer_core.host import resolve
from trainer_core.line.lock import FileLock, held
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import request_stop

Say = Callable[[str], None]

_POLL_SECONDS = 0.3
_WORKER_GRACE_SECONDS = 20.0
_SERVER_GRACE_SECONDS = 20.0


def down(home: Home, *, wait_seconds: float, say: Say) -> bool:
    """End everything that `up` started; True when no process is left."""
    with FileLock.acquire(home.lock, role="nstrain down"):
        record = read_record(home)
        if not record.server_alive() and not record.live_workers():
            say("nothing runs")
            write_record(home, record.without_processes())
            return True
        _as_the_workers(record)
        below = _below_workers(record)
        _stop_lines(record, below, wait_seconds=wait_seconds, say=say)
        below = _below_workers(record)
        left = end(record.live_workers().values(), grace_seconds=_WORKER_GRACE_SECONDS)
        trainers = [process.identity for process in below if process.line is not None]
        others = [process.identity for process in below if process.line is None]
        left += end(others, grace_seconds=2.0)
        left += wait_gone(trainers, wait_seconds)
        if record.server is not None:
            left += end([record.server], grace_seconds=_SERVER_GRACE_SECONDS)
        for identity in left:
            say(f"process {identity.pid} still runs; a trainer ends by itself after its checkpoint")
        if not left:
            say("the workers and the server have ended")
        write_record(home, record.without_processes())
        return not left


def _as_the_workers(record: ServerRecord) -> None:
    """Look names of lines up where the workers do, whatever this terminal's host settings are."""
    os.environ.pop("NSTRAIN_HOST", None)
    if record.host_file is not None:
        os.environ["NSTRAIN_HOST"] = record.host_file


def _below_workers(record: ServerRecord) -> list[Descendant]:
    return [process for worker in record.live_workers().values() for process in descendants(worker)]


def running_lines(record: ServerRecord, below: list[Descendant]) -> dict[Path, list[str]]:
    """Lines that run on this host with the ids of their flow runs: from the server, and from the trainers."""
    lines: dict[Path, list[str]] = {}
    for process in below:
        if process.line is not None:
            lines.setdefault(process.line, [])
    try:
        for run in Api(record.url).active_runs("trunk"):
            if name := run.get("parameters", {}).get("line"):
                lines.setdefault(resolve(name), []).append(str(run["id"]))
    except (Unreachable, ApiError, Refused):
        pass  # without the server or the host settings, the trainers' own arguments are all there is
    return lines


def _stop_lines(record: ServerRecord, below: list[Descendant], *, wait_seconds: float, say: Say) -> None:
    """Ask every running line for a checkpoint and wait, for a bounded time, until it has stopped."""
    waiting: dict[Path, list[str]] = {}
    for root, runs in running_lines(record, below).items():
        try:
            asked = request_stop(LinePaths(root), by="nstrain down")
        except Refused:
            continue  # the run's line does not exist: nothing to save
        if asked is not None:
            say(f"{root}: running, asked it to stop with a checkpoint")
            waiting[root] = runs
    deadline = time.monotonic() + wait_seconds
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        for root in [root for root, runs in waiting.items() if _stopped(record, root, runs)]:
            say(f"{root}: stopped")
            del waiting[root]
    for root in waiting:
        say(f"{root}: no stop within {wait_seconds:.0f} seconds; its trainer ends after its next checkpoint")


def _stopped(record: ServerRecord, root: Path, runs: list[str]) -> bool:
    """Whether nobody holds the line and its flow runs have reached their final states."""
    if held(LinePaths(root).lock):
        return False
    api = Api(record.url)
    try:
        return all(api.run(run)["state"]["type"] not in ("RUNNING", "CANCELLING") for run in runs)
    except (Unreachable, ApiError):
        return True
