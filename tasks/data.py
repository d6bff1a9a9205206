"""Tasks that prepare and delete cycles of a data line; every one is idempotent.

Downloading and tokenizing run in a process of their own (`tasks.data_child`). A task ends as Cancelled
when its run is leaving; the next run finds what was finished and goes on from there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.context import TaskRunContext
from prefect.states import Cancelled, Failed, State
from prefect.tasks import Task

from trainer_core.errors import OUTCOMES, DataUsedUp, DiskFull, NstrainError, Refused
from trainer_core.line.paths import DataPaths
from trainer_core.supervise.reading import last_line
from trainer_core.supervise.spawn import CHECKOUT, rotate

_POLL_SECONDS = 0.2
_TERM_SECONDS = 10.0
_FINAL: dict[int, type[NstrainError]] = {20: Refused, 32: DiskFull, 33: DataUsedUp}

RETRIES = 50
"""Runs of a step that died, some eight hours with the waits between them."""

StepCommand = Callable[[str, Path, int], Sequence[str]]
"""Makes the argument vector of a step's process; tests put a stand-in here."""


def step_command(step: str, work: Path, cycle: int) -> list[str]:
    """The command line of a real step."""
    return [sys.executable, "-m", "tasks.data_child", step, str(work), str(cycle)]


class Left(Exception):
    """The step was cut off because its run is leaving."""


def run_step(
    step: str, work: Path, cycle: int, *, leaving: Event | None = None, command: StepCommand = step_command
) -> Any:
    """Run a step to its end and return its result.

    Raises Refused, DataUsedUp or DiskFull as the step did, Left when `leaving` is set, and RuntimeError with
    the last line of the log when the process died.
    """
    paths = DataPaths(work)
    rotate(paths.preparer_log)
    with open(paths.preparer_log, "ab") as log:
        child = subprocess.Popen(
            list(command(step, work, cycle)),
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        answer = _await(child, leaving)
    finally:
        if child.poll() is None:
            child.terminate()
            _end(child)
    return _result(step, cycle, child.returncode, answer, paths)


def _await(child: subprocess.Popen[bytes], leaving: Event | None) -> bytes:
    while True:
        try:
            return child.communicate(timeout=_POLL_SECONDS)[0]
        except subprocess.TimeoutExpired:
            if leaving is not None and leaving.is_set():
                raise Left from None


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(_TERM_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _result(step: str, cycle: int, code: int, answer: bytes, paths: DataPaths) -> Any:
    try:
        value = json.loads(answer)
    except ValueError:
        value = {}
    if code == 0 and "result" in value:
        return value["result"]
    if code in _FINAL and "error" in value:
        raise _FINAL[code](value["error"])
    said = value.get("error") or last_line(paths.preparer_log)
    raise RuntimeError(f"{step} of cycle {cycle} ended with exit code {code}: {said} ({paths.preparer_log})")


def worth_retrying(task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """A death of the process may not repeat itself; what is returned as a state would."""
    return isinstance(state.data, Exception)


def delay_seconds(run_count: int) -> float:
    """Wait before this run of a task, by how often it has run."""
    return 0.0 if run_count <= 1 else float(min(10 * 2 ** min(run_count - 2, 10), 600))


def _attempt(step: str, work: Path, cycle: int, leaving: Event | None, command: StepCommand) -> Any:
    """One run of a step's task; the wait before a retry is here, not in Prefect, so it can be cut off."""
    context = TaskRunContext.get()
    delay = delay_seconds(context.task_run.run_count if context is not None else 1)
    leaving = leaving if leaving is not None else Event()
    try:
        if leaving.wait(delay):
            raise Left
        return run_step(step, work, cycle, leaving=leaving, command=command)
    except Left:
        return Cancelled(message="the run is ending; finished work stays")
    except NstrainError as error:
        outcome = OUTCOMES[error.exit_code]
        return Failed(name=outcome.state_name, message=str(error))


def _step_task(name: str) -> Task[..., Any]:
    @task(
        name=name,
        task_run_name=name + "-c{cycle}",
        retries=RETRIES,
        retry_delay_seconds=1,
        retry_condition_fn=worth_retrying,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
    def run(work: Path, cycle: int, leaving: Event | None = None, command: StepCommand = step_command) -> Any:
        return _attempt(name, work, cycle, leaving, command)

    return run


download = _step_task("download")
tokenize = _step_task("tokenize")


@task(
    name="delete",
    task_run_name="delete-c{cycle}",
    retries=2,
    retry_delay_seconds=2,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def delete(work: Path, cycle: int) -> bool:
    """Remove a trained cycle's shards; what fails here is found by the next run. Quick, so it runs here."""
    from trainer_core.data.prepare import CyclePreparer

    return CyclePreparer(work).delete_cycle(cycle)
