"""Submitting a run of trunk/trunk and following it from a terminal, by REST and by the line's own files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deployments.api import Api, ApiError, Unreachable
from deployments.home import Home, read_record
from trainer_core.errors import OUTCOMES, STUCK, Refused
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import request_stop

TERMINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Submitted:
    """A flow run that was created."""

    api: Api
    """Server it lives on."""
    id: str
    """Flow run id."""
    name: str
    """Flow run name."""
    url: str
    """Page of the run in the UI."""


def submit(line: Path, cycles: int | None) -> Submitted:
    """Create a run of trunk/trunk. Raises Refused naming `nstrain up` when no server answers."""
    server = read_record(Home.default())
    if not server.server_alive():
        raise Refused("the Prefect server is not running; `nstrain up` starts it (or use --inline)")
    api = Api(server.url)
    try:
        run = api.create_run("trunk/trunk", {"line": str(line), "cycles": cycles}, tags=[f"line:{line.name}"])
    except (Unreachable, ApiError) as error:
        raise Refused(f"{error}; `nstrain up` starts the server and the deployments") from None
    return Submitted(api=api, id=run["id"], name=run["name"], url=f"{server.ui}/runs/flow-run/{run['id']}")


def follow(run: Submitted, line: Path, *, say: Callable[[str], None]) -> int:
    """Print the line's log until the run ends; returns the trainer's exit code.

    Ctrl-C asks the line to stop, a second one leaves the run alone and returns 130.
    """
    log = _Tail(LinePaths(line).run_log)
    interrupted = False
    while True:
        try:
            for text in log.new_lines():
                say(text)
            state = _state(run)
            if state is not None and state["type"] in TERMINAL:
                say(f"{state['name']}: {state.get('message') or ''}")
                return _exit_code(state["name"], state["type"])
            time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            if interrupted:
                say("detached; the line goes on")
                return 130
            interrupted = True
            request_stop(LinePaths(line), by="Ctrl-C")
            say("a stop is requested (Ctrl-C again to detach)")


def _state(run: Submitted) -> dict[str, str] | None:
    """State of the run, or None while the server does not answer: the line does not need it."""
    try:
        value = run.api.run(run.id)["state"]
    except (Unreachable, ApiError):
        return None
    return value if isinstance(value, dict) else None


def _exit_code(name: str, state_type: str) -> int:
    for outcome in (*OUTCOMES.values(), STUCK):
        if outcome.state_name == name:
            return max(outcome.code, 1) if outcome is STUCK else outcome.code
    return 0 if state_type == "COMPLETED" else 1


class _Tail:
    """The lines that a log grows by from now on; a rotated log is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def new_lines(self) -> list[str]:
        """Whole lines written since the last call."""
        if not self._path.exists():
            return []
        if self._path.stat().st_size < self._offset:
            self._offset = 0
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", "replace").splitlines()
