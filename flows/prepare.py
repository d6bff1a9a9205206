"""`prepare/prepare`: download and tokenize cycles ahead of a line, with the same tasks as its own run.

Runs beside the line, before it, or on another host that sees the data line; finished work is found, not
redone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.states import Completed, Failed, State
from pydantic import Field

from flows.names import line_root, run_name
from tasks import data as data_tasks
from trainer_core.errors import Refused
from trainer_core.line.config import load_run
from trainer_core.line.cycles import Delete, Download, Tokenize, next_actions
from trainer_core.line.paths import LinePaths


@flow(name="prepare", flow_run_name=run_name, persist_result=False)
def prepare(line: str = "trunk", cycles_ahead: Annotated[int, Field(ge=0)] = 1) -> State[Any]:
    """Prepare the cycle that the line needs now and some after it; delete trained ones that were left.

    Args:
        line: Absolute path of the line, or its name under work_root.
        cycles_ahead: Cycles to prepare beyond the one that is needed now.
    """
    return prepare_line(line, cycles_ahead)


def prepare_line(
    line: str, cycles_ahead: int, *, command: data_tasks.StepCommand = data_tasks.step_command
) -> State[Any]:
    """The flow's body; `command` starts a step."""
    from trainer_core.ops.facts import read_facts

    done: list[str] = []
    tried: set[object] = set()
    try:
        paths = LinePaths(line_root(line))
        data = Path(load_run(paths).data)
        while True:
            actions = next_actions(read_facts(paths.root, None, ahead=cycles_ahead))
            work = [a for a in actions if isinstance(a, Download | Tokenize | Delete) and a not in tried]
            if not work:
                return Completed(message=", ".join(done) or "everything is prepared already")
            action = work[0]
            tried.add(action)
            state = _do(action, data, command)
            if not state.is_completed():
                return Failed(name=state.name, message=state.message)
            done.append(f"{type(action).__name__.lower()} of cycle {action.cycle}")
    except Refused as error:
        return Failed(name="Refused", message=str(error))


def _do(action: Download | Tokenize | Delete, data: Path, command: data_tasks.StepCommand) -> State[Any]:
    match action:
        case Download(cycle):
            return data_tasks.download(work=data, cycle=cycle, command=command, return_state=True)
        case Tokenize(cycle):
            return data_tasks.tokenize(work=data, cycle=cycle, command=command, return_state=True)
        case Delete(cycle):
            return data_tasks.delete(data, cycle, return_state=True)
