"""Submitting a line's run to the server of this host, and following it from the terminal.

Training never depends on who follows: the terminal may go away at any time. Progress is read from the line's
own files, the end from the run's state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.api import Api, ApiError, Unreachable
from deployments.home import Home, ServerRecord, read_record
from flows.names import new_name
from trainer_core.errors import CRASHED, OUTCOMES, Refused
from trainer_core.line.ledger import live_rows
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import request_stop
from trainer_core.supervise import record as supervision
from trainer_core.supervise.lease import refuse_if_run

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
    """Create a run of trunk/trunk for a line (its absolute path); a worker starts it within seconds.

    Raises Refused for what the server will not take, and while the line is being run: a second run would
    only wait to be refused, or to train on after a stop that was meant to hold.
    """
    if cycles is not None and cycles < 1:
        raise Refused(f"--cycles {cycles}: expected a whole number of at least 1")
    refuse_if_run(LinePaths(line))
    record = running_server()
    parameters: dict[str, Any] = {"line": str(line)}
    if cycles is not None:
        parameters["cycles"] = cycles
    try:
        name = new_name(DEPLOYMENT.partition("/")[0], parameters)
        run = Api(record.url).create_run(DEPLOYMENT, parameters, name=name)
    except ApiError as error:
        if error.status == 404:
            raise Refused(
                f"deployment {DEPLOYMENT} is missing on {record.url}; `nstrain up` puts it there"
            ) from None
        if error.status in (409, 422):
            raise Refused(f"{DEPLOYMENT}: {answer_of(error)}") from None
        raise
    return Submitted(id=run["id"], name=run["name"], url=f"{record.ui}/runs/flow-run/{run['id']}")


def follow(run: Submitted, line: Path, *, say: Say) -> int:
    """Report progress until the run ends; returns the trainer's exit code.

    The first Ctrl-C ends the run, with a checkpoint; the second one leaves it alone: KeyboardInterrupt.
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
            say(end_run(run, line))


def end_run(run: Submitted, line: Path) -> str:
    """Ask the line for a stop if this run has it, or cancel this run alone; what was done, in a sentence."""
    paths = LinePaths(line)
    known = supervision.read_record(paths)
    if known.run == run.id and known.state != "ended":
        request_stop(paths, by="nstrain run")
        return "asked for a stop with a checkpoint; Ctrl-C again to leave"
    cancelling = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    Api(read_record(Home.default()).url).call("POST", f"/flow_runs/{run.id}/set_state", cancelling)
    return f"{run.name} has not started to train; it is cancelled, the line is left as it is"


def wait_final(run: Submitted, line: Path, *, say: Say) -> int:
    """Wait for the run's final state, telling state changes and training progress."""
    api = Api(read_record(Home.default()).url)
    paths = LinePaths(line)
    last_said, last_row, last_report = "", _newest_row(paths), 0.0
    while True:
        try:
            state = api.run(run.id)["state"]
        except (Unreachable, ApiError):
            state = None  # the server is away; training goes on without it
        if state is not None and (said := state_line(state)) != last_said:
            last_said = said
            say(f"{run.name}: {said}")
        if state is not None and state["type"] in FINAL:
            return exit_code(state)
        if time.monotonic() - last_report >= _REPORT_SECONDS:
            last_report = time.monotonic()
            rows = live_rows(paths.metrics)
            if rows and rows[-1] != last_row:
                last_row = rows[-1]
                say(progress_line(rows))
        time.sleep(_POLL_SECONDS)


def _newest_row(paths: LinePaths) -> dict[str, Any] | None:
    rows = live_rows(paths.metrics)
    return rows[-1] if rows else None


def state_line(state: dict[str, Any]) -> str:
    """A run's state for people."""
    if state["name"] == "Late":
        return "late: no worker has started the flow yet; `nstrain doctor` says why"
    if state["type"] in ("SCHEDULED", "PENDING"):
        return "waiting for the worker to start the flow"
    return str(state["name"]) + (f" ({state['message']})" if state.get("message") else "")


def answer_of(error: ApiError) -> str:
    """The server's own sentence in the answer of a refused request."""
    text = str(error).partition(f": {error.status} ")[2] or str(error)
    try:
        detail = json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        return text
    if not isinstance(detail, list):
        return str(detail)
    return "; ".join(str(item.get("msg", item)) if isinstance(item, dict) else str(item) for item in detail)


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
