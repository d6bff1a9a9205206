"""`export/export`: a checkpoint of a line, which may train on, as a folder that transformers loads."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.states import Completed, Failed, State
from pydantic import Field

from flows.names import line_root, run_name
from trainer_core.errors import OUTCOMES, NstrainError
from trainer_core.host import resolve


@flow(name="export", flow_run_name=run_name, persist_result=False)
def export(
    out: str, line: str = "trunk", at: Annotated[int, Field(ge=0)] | None = None, ema: bool = False
) -> State[Any]:
    """Write a checkpoint of a line in the Hugging Face layout.

    Args:
        out: Folder to make, absolute or under work_root; one that is there must be empty.
        line: Absolute path of the line, or its name under work_root.
        at: The checkpoint after this update; empty means the latest.
        ema: The moving average of the weights, of a line that keeps one.
    """
    from trainer_core.ops.export import export_line

    try:
        done = export_line(line_root(line), resolve(out), at=at, ema=ema)
    except NstrainError as error:
        name = OUTCOMES[error.exit_code].state_name if error.exit_code in OUTCOMES else "Failed"
        return Failed(name=name, message=str(error))
    record = done.record
    return Completed(message=f"line {record.line} at update {record.update} is exported to {done.out}")
