"""Names of flow runs and lines, and their tag. Loads no Prefect, because the terminal names runs too."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.views import Views
from trainer_core.host import load_host, resolve


def new_name(flow: str, parameters: Mapping[str, Any]) -> str:
    """`<line>-<flow>-<time>` for a run that is asked for now."""
    return f"{_prefix(flow, parameters)}{time.strftime('%m%d-%H%M%S')}"


def run_name() -> str:
    """The name of the flow run that is being started; one that `new_name` gave it before stays."""
    from prefect.runtime import flow_run

    flow, parameters = str(flow_run.flow_name), flow_run.parameters or {}
    current = str(flow_run.name or "")
    return current if current.startswith(_prefix(flow, parameters)) else new_name(flow, parameters)


def _prefix(flow: str, parameters: Mapping[str, Any]) -> str:
    thing = Path(str(parameters.get("line") or parameters.get("work") or "host")).name
    return f"{thing}-{flow}-"


def line_root(line: str) -> Path:
    """The directory of a line given by absolute path or by a name under work_root."""
    load_host()
    return resolve(line)


def tag_line(views: Views, name: str) -> None:
    """Put the tag `line:<name>` on the current flow run."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    run_id, tags = context.flow_run.id, {*context.flow_run.tags, f"line:{name}"}
    # On the run only: a tag on task runs would make each of them ask the server for a concurrency slot.
    views.put("tag", lambda client: client.update_flow_run(run_id, tags=sorted(tags)))
