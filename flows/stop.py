"""`stop/stop`: end a line with a checkpoint, at the next update or at a boundary. No time limit applies."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.states import Completed, Failed, State
from pydantic import Field

from flows.names import line_root, run_name
from trainer_core.errors import Refused
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import StopRequest, request_stop


@flow(name="stop", flow_run_name=run_name, persist_result=False)
def stop(
    line: str = "trunk",
    at_cycle_end: Annotated[int, Field(ge=0)] | None = None,
    at_update: Annotated[int, Field(ge=0)] | None = None,
) -> State[Any]:
    """Ask a line to stop with a checkpoint; a later start goes on from it.

    Args:
        line: Absolute path of the line, or its name under work_root.
        at_cycle_end: Stop exactly when this cycle is trained; empty means at the next update.
        at_update: Stop when this many updates are done.
    """
    try:
        paths = LinePaths(line_root(line))
        request = request_stop(paths, at_cycle_end=at_cycle_end, at_update=at_update, by="stop flow")
    except Refused as error:
        return Failed(name="Refused", message=str(error))
    return Completed(message=promise(paths, request))


def promise(paths: LinePaths, request: StopRequest | None) -> str:
    """What will happen now, in a sentence."""
    if request is None:
        return f"line {paths.name} is not running; it stays stopped"
    if request.at_cycle_end is not None:
        return f"line {paths.name} stops at the end of cycle {request.at_cycle_end}, with a checkpoint"
    if request.at_update is not None:
        return f"line {paths.name} stops at update {request.at_update}, with a checkpoint"
    return f"line {paths.name} stops at its next update, with a checkpoint"
