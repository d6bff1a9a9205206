"""`trunk/trunk`: run or continue a training line until it has finished, stops, or cannot go on."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.states import State
from pydantic import Field

from flows.line import run_line
from flows.names import run_name


@flow(name="trunk", flow_run_name=run_name, persist_result=False)
def trunk(line: str = "trunk", cycles: Annotated[int, Field(ge=1)] | None = None) -> State[Any]:
    """Run a training line: supervise its trainer, prepare each next cycle meanwhile, delete trained ones.

    Args:
        line: Absolute path of the line, or its name under work_root.
        cycles: Train cycles 0 to cycles-1 in all; empty means to the end of the schedule.
    """
    return run_line(line, cycles, by="trunk")
