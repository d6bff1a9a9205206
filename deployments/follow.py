"""Submitting a line's run to the server of this host, and following it from the terminal.

Training never depends on who follows: the terminal may go away at any time. Progress is read from the line's
own files, the end from the run's state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.api import Api, ApiError, Unreachable
from deployments.home import Home, ServerRecord, read_record
from trainer_core.errors import CRASHED, OUTCOMES, Refused
from trainer_core.line.ledger import live_rows
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import request_stop

Say = Callable[[str], None]

DEPLOYMENT = "trunk/trunk"
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
"""State types that a run does not leave."""

_POLL_SECONDS = 0.5
_REPORT_SECONDS = 3.0
_CODES = {outcome.state_name: code for code, outcome in OUTCOMES.items()}


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A run that the server has accepted."""

    id: str
    """Id of the flow run."""
    name: str
    """Its name in the UI."""
    url: str
    """Its page in the UI."""


def running_server() -> ServerRecord:
    """The record of this host's server. Raises Refused when it does not run: another's may have its port."""
    record = read_record(Home.default())
    if not record.server_alive() or not Api(record.url).healthy():
        raise Refused(f"no Prefect server answers at {record.url}; start it with `nstrain up`")
    return record


def submit(line: Path, cycles: int | None) -> Submitted:
    """Create a run of trunk/trunk for a line (its absolute path); a worker starts it within seconds."""
    record = running_server()
    parameters: dict[str, Any] = {"line": str(line)}
    if cycles is not None:
        parameters["cycles"] = cycles
    try:
        run = Api(record.url).create_run(DEPLOYMENT, parameters)
    except ApiError as error:
        if error.status == 404:
            raise Refused(
                f"deployment {DEPLOYMENT} is missing on {record.url}; `nstrain up` puts it there"
            ) from None
        raise
    return Submitted(id=run["id"], name=run["name"], url=f"{record.ui}/runs/flow-run/{run['id']}")


def follow(run: Submitted, line: Path, *, say: Say) -> int:
    """Report progress until the run ends; returns the trainer's exit code.

    The first Ctrl-C asks the line for a stop, the second one leaves it alone and raises KeyboardInterrupt.
    """
    asked = False
    while True:
        try:
            return wait_final(run, line, say=say)
        except KeyboardInterrupt:
            if asked:
                say("detached; the line goes on")
                raise
            asked = True
            stopping = request_stop(LinePaths(line), by="nstrain run")
            say(
                "asked for a stop with a checkpoint; Ctrl-C again to leave"
                if stopping
                else "it does not run yet"
            )


def wait_final(run: Submitted, line: Path, *, say: Say) -> int:
    """Wait for the run's final state, telling state changes and training progress."""
    api = Api(read_record(Home.default()).url)
    paths = LinePaths(line)
    last_state, last_update, last_report = "", -1, 0.0
    while True:
        try:
            state = api.run(run.id)["state"]
        except (Unreachable, ApiError):
            state = None  # the server is away; training goes on without it
        if state is not None and state["name"] != last_state:
            last_state = state["name"]
            say(f"{run.name}: {last_state}" + (f" ({state['message']})" if state.get("message") else ""))
        if state is not None and state["type"] in FINAL:
            return exit_code(state)
        if time.monotonic() - last_report >= _REPORT_SECONDS:
            last_report = time.monotonic()
            rows = live_rows(paths.metrics)
            if rows and rows[-1]["update"] != last_update:
                last_update = rows[-1]["update"]
                say(progress_line(rows))
        time.sleep(_POLL_SECONDS)


def progress_line(rows: list[dict[str, Any]]) -> str:
    """The newest update in one line."""
    row = rows[-1]
    seconds = sum(sum(recent["seconds"].values()) for recent in rows[-20:])
    tokens = row["tokens"] - (rows[-21]["tokens"] if len(rows) > 20 else 0)
    rate = f", {tokens / seconds:,.0f} tokens/s" if seconds > 0 else ""
    return f"update {row['update']}: {row['tokens']:,} tokens, loss {row['train/loss']:.4f}{rate}"


def exit_code(state: dict[str, Any]) -> int:
    """The exit code that a run's final state stands for."""
    if state["type"] == "CANCELLED":
        return _CODES["Stopped"]
    if state["name"] in _CODES:
        return _CODES[state["name"]]
    return 0 if state["type"] == "COMPLETED" else abs(CRASHED.code)
