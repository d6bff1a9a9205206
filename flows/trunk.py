"""`trunk/trunk`: run or continue a training line until it has finished, stops, or cannot go on."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.states import State
from pydantic import Field

from flows.line import run_line
from flows.names import run_name


@flow(name="trunk", flow_run_name=run_name, persist_result=False)
def trunk(
    line: Annotated[
        str, Field(description="Absolute path of the line, or its name under work_root")
    ] = "trunk",
    cycles: Annotated[
        int | None, Field(ge=1, description="Train cycles 0..cycles-1 in all; empty: to the schedule's end")
    ] = None,
) -> State[Any]:
    """Run a training line: supervise its trainer, prepare each next cycle meanwhile, delete trained ones."""
    return run_line(line, cycles, by="trunk")
