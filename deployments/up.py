"""`nstrain up`: one server, three pools, the deployments, three workers; no effect when all is there.

Every process is recorded before the next one is started, so that `nstrain down` finds it whatever fails.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

from deployments.api import Api
from deployments.home import Home, ServerRecord, checkout, read_record, write_record
from deployments.prefect_profile import ProfileResult, write_profile
from deployments.server import PortLost, start_server, wait_healthy
from deployments.workers import POOLS, deploy_all, start_workers, wait_online
from trainer_core.errors import Refused
from trainer_core.host import load_host
from trainer_core.line.lock import FileLock

Say = Callable[[str], None]
_WATCH_SECONDS = 1.0


def up(home: Home, *, database: str | None, say: Say) -> ServerRecord:
    """Bring everything up and return the record. Raises Refused when what runs does not fit what is asked."""
    load_host()
    checkout()
    with FileLock.acquire(home.lock, role="nstrain up"):
        record = _settle(read_record(home), database=database, say=say)
        record = _ensure_server(home, record, say)
        api = Api(record.url)
        for pool in POOLS:
            api.ensure_pool(pool)
        started = [pool for pool in POOLS if pool not in record.live_workers()]
        record = start_workers(home, record)
        write_record(home, record)
        say(f"{deploy_all(home, record)} deployments are in place")
        wait_online(home, record)
        say(f"workers for {', '.join(started)} started" if started else "the workers already run")
        _tell_profile(write_profile(record.url), say)
    return record


def _settle(record: ServerRecord, *, database: str | None, say: Say) -> ServerRecord:
    """The record this `up` works on, after comparing the wish with what runs."""
    named = os.environ.get("NSTRAIN_HOST")
    host_file = str(Path(named).expanduser().absolute()) if named else None
    problems = []
    if record.server_alive() and database is not None and database != record.database:
        problems.append(
            "the server runs on another database; `nstrain down` first, then `nstrain up --database`"
        )
    if record.live_workers() and record.host_file != host_file:
        running = record.host_file or "the default host settings"
        if host_file is not None:
            problems.append(
                f"the workers run with {running}, not with NSTRAIN_HOST={host_file}; `nstrain down` first"
            )
        else:
            say(f"the workers go on with {running}; `nstrain down`, then `nstrain up` changes that")
    if problems:
        raise Refused(problems)
    if not record.live_workers():
        record = replace(record, host_file=host_file)
    return replace(record, database=database) if database is not None else record


def _ensure_server(home: Home, record: ServerRecord, say: Say) -> ServerRecord:
    """A server that answers: the recorded one, or a new one."""
    if record.server_alive():
        wait_healthy(home, record)
        say(f"the server already runs at {record.ui}")
        return record
    while True:
        wished = record.port
        record = start_server(home, record)
        write_record(home, record)
        if record.port != wished:
            say(f"port {wished} is taken by a server that is not ours; using {record.port}")
        say(f"starting the Prefect server at {record.ui}")
        try:
            wait_healthy(home, record)
        except PortLost:
            continue
        return record


def _tell_profile(result: ProfileResult, say: Say) -> None:
    if result.changed:
        say(f"wrote profile `nstrain` to {result.path}")
    if result.hint:
        say(result.hint)


def stay(home: Home, *, database: str | None, say: Say) -> None:
    """For `up --foreground`: start again what ends, until SIGTERM or SIGINT; the caller then calls `down`."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    previous = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not asked:
            record = read_record(home)
            if not record.server_alive() or len(record.live_workers()) < len(POOLS):
                say("a process ended; starting it again")
                up(home, database=database, say=say)
            time.sleep(_WATCH_SECONDS)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
