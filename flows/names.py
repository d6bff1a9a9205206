"""Names of flow runs and lines, and their tag. Never raises for the sake of a name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from prefect.context import FlowRunContext

from tasks.views import Views
from trainer_core.host import load_host, resolve


def run_name() -> str:
    """`<line>-<flow>-<time>`, from the parameters of the flow run that is being started."""
    from prefect.runtime import flow_run

    given: dict[str, Any] = flow_run.parameters or {}
    thing = Path(str(given.get("line") or given.get("work") or "host")).name
    return f"{thing}-{flow_run.flow_name}-{time.strftime('%m%d-%H%M%S')}"


def line_root(line: str) -> Path:
    """The directory of a line given by absolute path or by a name under work_root."""
    load_host()
    return resolve(line)


def tag_line(views: Views, name: str) -> None:
    """Put the tag `line:<name>` on the current flow run."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    run_id, tags = context.flow_run.id, {*context.flow_run.tags, f"line:{name}"}
    # On the run only: a tag on task runs would make each of them ask the server for a concurrency slot.
    views.put("tag", lambda client: client.update_flow_run(run_id, tags=sorted(tags)))
