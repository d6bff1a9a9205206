"""Tasks that prepare and delete cycles of a data line; every one is idempotent.

Downloading and tokenizing run in a process of their own (`tasks.data_child`). A task ends as Cancelled
when its run is leaving; the next run finds what was finished and goes on from there.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Failed, State
from prefect.tasks import Task

from tasks.data_files import FileTasks
from trainer_core.data.prepare.file_steps import FileStep, Report, report_nothing
from trainer_core.data.prepare.retries import RETRIES, delay_seconds, tell_of_failure
from trainer_core.errors import OUTCOMES, DataUsedUp, Leaving, NstrainError, Refused
from trainer_core.line.paths import DataPaths
from trainer_core.supervise.reading import last_line
from trainer_core.supervise.spawn import CHECKOUT, rotate

_POLL_SECONDS = 0.2
_TERM_SECONDS = 10.0
_TIDY_SECONDS = 5.0
_FINAL: dict[int, type[NstrainError]] = {20: Refused, 33: DataUsedUp}

StepCommand = Callable[[str, Path, int], Sequence[str]]
"""Makes the argument vector of a step's process; tests put a stand-in here."""


def step_command(step: str, work: Path, cycle: int) -> list[str]:
    """The command line of a real step."""
    return [sys.executable, "-m", "tasks.data_child", step, str(work), str(cycle)]


def run_step(
    step: str,
    work: Path,
    cycle: int,
    *,
    leaving: Event | None = None,
    command: StepCommand = step_command,
    report: Report = report_nothing,
) -> Any:
    """Run a step to its end and return its result; `report` is told of its files.

    Raises Refused or DataUsedUp as the step did, Leaving when `leaving` is set, and RuntimeError with the
    last line of the log when the process died.
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
        answer = _follow(child, leaving, report, almost_done=paths.manifest(cycle).exists)
    finally:
        if child.poll() is None:
            child.terminate()
            _end(child)
        if child.stdout is not None:
            child.stdout.close()
    return _result(step, cycle, child.returncode, answer, paths)


def _follow(
    child: subprocess.Popen[bytes], leaving: Event | None, report: Report, almost_done: Callable[[], bool]
) -> bytes:
    """Pass on what the step says of its files until it ends; its last line.

    A run that is ending gives a step whose cycle is published already a moment to tidy up.
    """
    assert child.stdout is not None
    fd, unread, last = child.stdout.fileno(), b"", b""
    end = float("inf")
    while True:
        if leaving is not None and leaving.is_set():
            end = min(end, time.monotonic() + (_TIDY_SECONDS if almost_done() else 0.0))
            if time.monotonic() >= end:
                raise Leaving("the run is ending; finished work stays")
        if not select.select([fd], [], [], _POLL_SECONDS)[0]:
            continue
        data = os.read(fd, 1 << 16)
        if not data:
            child.wait()
            return unread or last
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            said = _parsed(line)
            if "file" in said:
                report(FileStep(**said["file"]))
            last = line


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(_TERM_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _result(step: str, cycle: int, code: int, answer: bytes, paths: DataPaths) -> Any:
    value = _parsed(answer)
    if code == 0 and "result" in value:
        return value["result"]
    if code in _FINAL and "error" in value:
        raise _FINAL[code](value["error"])
    said = value.get("error") or last_line(paths.preparer_log)
    raise RuntimeError(f"{step} of cycle {cycle} ended with exit code {code}: {said} ({paths.preparer_log})")


def worth_retrying(task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """A death of the process may not repeat itself; what is returned as a state would."""
    return isinstance(state.data, Exception)


def _attempt(step: str, work: Path, cycle: int, leaving: Event | None, command: StepCommand) -> Any:
    """One run of a step's task; the wait before a retry is here, not in Prefect, so it can be cut off."""
    context = TaskRunContext.get()
    run_count = context.task_run.run_count if context is not None else 1
    leaving = leaving if leaving is not None else Event()
    files = FileTasks()
    try:
        if leaving.wait(delay_seconds(run_count)):
            raise Leaving("the run is ending")
        return run_step(step, work, cycle, leaving=leaving, command=command, report=files)
    except Leaving as left:
        return Cancelled(message=str(left))
    except NstrainError as error:
        outcome = OUTCOMES[error.exit_code]
        return Failed(name=outcome.state_name, message=str(error))
    except Exception as error:
        tell_of_failure(DataPaths(work), step, cycle, failures=run_count, why=str(error))
        raise
    finally:
        files.close("the step ended before the file was through")
        if files.hidden:
            get_run_logger().info(f"{files.hidden} further files of this step are not shown")


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
    from trainer_core.data.prepare.sweep import delete_shards

    return delete_shards(DataPaths(work), cycle, consumed=True)
