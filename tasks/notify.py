"""Delivering the events of a line or data line: to the Prefect server, and to the host's notify command.

The rows of `events.jsonl` are the truth; here they are only passed on. A row is acknowledged when the
server shows it again and the command has ended well, so nothing is lost when either dies at any moment,
and something may be delivered twice (the id tells).
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
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from tasks.views import identity_of_run, new_client
from trainer_core.line.events import acknowledge, pending_events
from trainer_core.line.paths import DataPaths, LinePaths

COMMAND_SECONDS = 30.0
"""Time the notify command has for one event."""

BATCH = 50
"""Rows delivered at once; as many as the server shows on a page."""

_CONFIRM_SECONDS = 30.0
_CLOSING_POLL_SECONDS = 1.0

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Courier:
    """Delivers the pending events of a line or data line on a thread, trying again ever less often."""

    def __init__(
        self,
        paths: LinePaths | DataPaths,
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
        self._sent: dict[str, float] = {}
        self._kept: set[str] = set()
        self._told: set[str] = set()
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._sound = True
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="courier", daemon=True)
        self._thread.start()

    def hurry(self, seconds: float) -> None:
        """Deliver what is pending now, at most this long, and end; does not wait for it."""
        self._deadline = time.monotonic() + seconds
        self._closing.set()

    def close(self, seconds: float = 10.0) -> None:
        """Deliver what is pending, at most this long, and end."""
        self.hurry(seconds)
        self._thread.join(seconds)

    def deliver(self) -> bool:
        """Deliver what is pending as far as that goes now; whether nothing is left. Never raises."""
        try:
            pending = pending_events(self._paths)[:BATCH]
        except Exception as error:
            return self._failed(error)
        sound = self._try(lambda: self._send(pending)) and self._try(lambda: self._confirm(pending))
        for row in pending:
            sound = sound and self._try(lambda row=row: self._tell(row))
            if row["id"] in self._kept and (self._command is None or row["id"] in self._told):
                sound = self._try(lambda row=row: acknowledge(self._paths, [row["id"]])) and sound
        self._sound = sound
        return sound and all(row["id"] in self._kept for row in pending) and len(pending) < BATCH

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
            return True
        except Exception as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> bool:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        self._sound = False
        return False

    def _work(self) -> None:
        wait, delivered = self._poll_seconds, -1
        while True:
            closing = self._closing.wait(wait)
            size = self._size()
            if size != delivered:
                delivered = size if self.deliver() else -1
                wait = self._poll_seconds if self._sound else min(2 * wait, self._longest_seconds)
            if closing:
                if delivered == size or time.monotonic() > self._deadline:
                    return
                time.sleep(_CLOSING_POLL_SECONDS)

    def _size(self) -> int:
        try:
            return self._paths.events.stat().st_size
        except OSError:
            return 0

    def _send(self, rows: list[dict[str, Any]]) -> None:
        """Post rows that the server has not got, or has got and not shown for a while: it may have died."""
        now = time.monotonic()
        late = now - _CONFIRM_SECONDS
        due = [row for row in rows if row["id"] not in self._kept and self._sent.get(row["id"], late) <= late]
        if due:
            with new_client() as client:
                events = [event_of(self._paths, row, self._flow_run) for row in due]
                client.request("POST", "/events", json=events).raise_for_status()
            self._sent.update((row["id"], now) for row in due)

    def _confirm(self, rows: list[dict[str, Any]]) -> None:
        """Ask the server which rows it has stored; it answers a post seconds before it stores the event."""
        asked = {str(uuid_of(row["id"])): row["id"] for row in rows if row["id"] not in self._kept}
        if asked:
            wanted = {"filter": {"id": {"id": list(asked)}}, "limit": BATCH}
            with new_client() as client:
                answer = client.request("POST", "/events/filter", json=wanted).raise_for_status().json()
            self._kept.update(asked[event["id"]] for event in answer["events"])

    def _tell(self, row: dict[str, Any]) -> None:
        """Run the notify command with one row on its standard input."""
        if self._command is None or row["id"] in self._told:
            return
        about = {"line": self._paths.name, "path": str(self._paths.root)}
        run_command(self._command, json.dumps({**about, **row}, ensure_ascii=False))
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


def event_of(
    paths: LinePaths | DataPaths, row: dict[str, Any], flow_run: UUID | None = None
) -> dict[str, Any]:
    """A row as a Prefect event `nstrain.line.<kind>` or `nstrain.data.<kind>`.

    It has the row's id, so a repetition is known as one.
    """
    from prefect.events.schemas.events import Event

    family = f"nstrain.{'data' if isinstance(paths, DataPaths) else 'line'}"
    event = Event(
        id=uuid_of(row["id"]),
        occurred=_moment(row["time"]),
        event=f"{family}.{row['kind']}",
        resource={
            "prefect.resource.id": f"{family}.{paths.name}",
            "prefect.resource.name": paths.name,
            f"{family}.path": str(paths.root),
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
