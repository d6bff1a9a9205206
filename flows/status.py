"""`status/status`: where a line stands, from its files, as a page of the run and as the flow's value."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact

from flows.names import line_root, run_name
from tasks.artifacts import artifact_key, status_page
from trainer_core.line.status import line_status


@flow(name="status", flow_run_name=run_name, persist_result=False)
def status(line: str = "trunk") -> dict[str, Any]:
    """Show where a line stands. Raises Refused when there is no such line.

    Args:
        line: Absolute path of the line, or its name under work_root.
    """
    root = line_root(line)
    found = line_status(root)
    create_markdown_artifact(status_page(found, root), key=artifact_key(root.name, "status"))
    return found
