"""`prepare/prepare`: download and tokenize cycles ahead of a line, with the same tasks as its own run.

Runs beside the line, before it, or on another host that sees its files; finished work is found, not redone.
`nstrain data run-preparer` does the same without Prefect.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed, State
from pydantic import Field

from flows.names import line_root, run_name, tag_line
from tasks import data as data_tasks
from tasks.notify import Courier
from tasks.views import Views
from trainer_core.errors import OUTCOMES, NstrainError
from trainer_core.host import load_host
from trainer_core.line.cycles import Delete, Download, Tokenize
from trainer_core.line.paths import DataPaths

_CLOSE_SECONDS = 10.0


@flow(name="prepare", flow_run_name=run_name, persist_result=False)
def prepare(
    line: str = "trunk",
    cycles_ahead: Annotated[int, Field(ge=0)] = 1,
    cycles: Annotated[int, Field(ge=1)] | None = None,
    follow: bool = False,
) -> State[Any]:
    """Prepare the cycle that the line needs now and some after it; delete trained ones that were left.

    Args:
        line: Absolute path of the line or of its data line, or the name of one under work_root.
        cycles_ahead: Cycles to prepare beyond the one that is needed now.
        cycles: Prepare cycles 0 to cycles-1 in all; empty means to the end of the schedule.
        follow: Go on as the line trains, until it needs no further cycle or this run is cancelled.
    """
    return prepare_line(line, cycles_ahead, cycles=cycles, follow=follow)


def prepare_line(
    line: str,
    cycles_ahead: int,
    *,
    cycles: int | None = None,
    follow: bool = False,
    command: data_tasks.StepCommand = data_tasks.step_command,
) -> State[Any]:
    """The flow's body; `command` starts a step."""
    from trainer_core.ops.preparer import FOLLOW_SECONDS, Ahead, line_of

    try:
        notify, paths = load_host().notify, line_of(line_root(line))
        ahead = Ahead(paths, cycles_ahead=cycles_ahead, cycles=cycles)
        data = ahead.data
        views, courier = Views(), Courier(DataPaths(data), notify)
        tag_line(views, paths.name)
        try:
            while True:
                step = ahead.next_step()
                if step is not None:
                    state = _do(step, data, command)
                    if not state.is_completed():
                        return Failed(name=state.name, message=state.message)
                    ahead.finish(step)
                elif not follow or ahead.over():
                    return Completed(message=ahead.message())
                else:
                    time.sleep(FOLLOW_SECONDS)
        finally:
            courier.close(_CLOSE_SECONDS)
            views.close(_CLOSE_SECONDS)
            if courier.failures:
                get_run_logger().warning(f"{courier.failures} deliveries repeated: {courier.last_error}")
    except NstrainError as error:
        return Failed(name=OUTCOMES[error.exit_code].state_name, message=str(error))


def _do(action: Download | Tokenize | Delete, data: Path, command: data_tasks.StepCommand) -> State[Any]:
    match action:
        case Download(cycle):
            return data_tasks.download(work=data, cycle=cycle, command=command, return_state=True)
        case Tokenize(cycle):
            return data_tasks.tokenize(work=data, cycle=cycle, command=command, return_state=True)
        case Delete(cycle):
            return data_tasks.delete(data, cycle, return_state=True)
