"""Delivering a line's events: to the Prefect server, and to the host's notify command.

The rows of `events.jsonl` are the truth; here they are only passed on. A row is acknowledged when the
server has taken it and the command has ended well, so nothing is lost when either is away, and something
may be delivered twice when a process dies in between (the id tells).
"""

from __future__ import annotations

import contextvars
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from tasks.views import identity_of_run, new_client
from trainer_core.line.events import acknowledge, pending_events
from trainer_core.line.paths import LinePaths

COMMAND_SECONDS = 30.0
"""Time the notify command has for one event."""

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Courier:
    """Delivers the pending events of one line on a thread of its own, trying again ever less often."""

    def __init__(
        self,
        paths: LinePaths,
        command: str | None,
        *,
        poll_seconds: float = 2.0,
        longest_seconds: float = 300.0,
    ) -> None:
        self.failures = 0
        """Deliveries that failed."""
        self.last_error = ""
        """Why the last one did."""
        self._paths = paths
        self._command = command
        self._poll_seconds = poll_seconds
        self._longest_seconds = longest_seconds
        self._flow_run = identity_of_run().get("flow_run_id")
        self._taken: set[str] = set()
        self._told: set[str] = set()
        self._closing = threading.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="courier", daemon=True)
        self._thread.start()

    def close(self, seconds: float = 10.0) -> None:
        """Deliver what is pending, at most this long, and end."""
        self._closing.set()
        self._thread.join(seconds)

    def deliver(self) -> bool:
        """Deliver everything that is pending; whether nothing is left. Never raises."""
        try:
            pending = pending_events(self._paths)
            self._send([row for row in pending if row["id"] not in self._taken])
        except Exception as error:
            self._failed(error)
            pending = pending_events(self._paths) if self._command else []
        for row in pending:
            try:
                self._tell(row)
                if row["id"] in self._taken:
                    acknowledge(self._paths, [row["id"]])
            except Exception as error:
                self._failed(error)
                return False
        return all(row["id"] in self._taken for row in pending)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"

    def _work(self) -> None:
        wait, size = self._poll_seconds, -1
        while True:
            closing = self._closing.wait(wait)
            found = self._size()
            if found != size or wait > self._poll_seconds:
                done = self.deliver()
                size = found if done else -1
                wait = self._poll_seconds if done else min(2 * wait, self._longest_seconds)
            if closing:
                return

    def _size(self) -> int:
        try:
            return self._paths.events.stat().st_size
        except OSError:
            return 0

    def _send(self, rows: list[dict[str, Any]]) -> None:
        """Give rows to the server, which answers only when it has them."""
        if not rows:
            return
        events = [event_of(self._paths, row, self._flow_run) for row in rows]
        with new_client() as client:
            client.request("POST", "/events", json=events).raise_for_status()
        self._taken.update(row["id"] for row in rows)

    def _tell(self, row: dict[str, Any]) -> None:
        """Run the notify command with one row on its standard input."""
        if self._command is None or row["id"] in self._told:
            return
        text = json.dumps(
            {"line": self._paths.name, "path": str(self._paths.root), **row}, ensure_ascii=False
        )
        run_command(self._command, text)
        self._told.add(row["id"])


def run_command(command: str, text: str, *, seconds: float = COMMAND_SECONDS) -> None:
    """Run a command line with `text` on its input; raises when it fails or takes too long."""
    words = [command] if Path(command).exists() else shlex.split(command)
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.communicate(text.encode("utf-8"), timeout=seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{words[0]} took longer than {seconds:.0f} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with exit code {process.returncode}")


def event_of(paths: LinePaths, row: dict[str, Any], flow_run: UUID | None = None) -> dict[str, Any]:
    """A row as a Prefect event `nstrain.line.<kind>`; with the row's id, so a repetition is known as one."""
    from prefect.events.schemas.events import Event

    event = Event(
        id=uuid_of(row["id"]),
        occurred=_moment(row["time"]),
        event=f"nstrain.line.{row['kind']}",
        resource={
            "prefect.resource.id": f"nstrain.line.{paths.name}",
            "prefect.resource.name": paths.name,
            "nstrain.line.path": str(paths.root),
        },
        related=[{"prefect.resource.id": f"prefect.flow-run.{flow_run}", "prefect.resource.role": "flow-run"}]
        if flow_run
        else [],
        payload=row,
    )
    return event.model_dump(mode="json")


def uuid_of(ulid: str) -> UUID:
    """The 128 bits of a ULID as a UUID."""
    number = 0
    for letter in ulid:
        number = number << 5 | _ALPHABET.index(letter)
    return UUID(int=number & (1 << 128) - 1)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}+00:00"
