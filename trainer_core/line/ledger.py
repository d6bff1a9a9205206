"""The ledger `metrics.jsonl`: every row a line ever measured, appended by the trainer alone.

After a crash the replayed updates are appended again; the live row of an update is the last one written for
it, and rows beyond the newest live update of a later attempt belong to work that was lost.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from trainer_core.line.files import append_jsonl, iterate_jsonl

Kind = Literal["update", "validation", "probe"]


class Ledger:
    """Append-only writer; `attempt` and `continuation` are stamped on every row."""

    def __init__(self, path: Path, *, attempt: int, continuation: int = 0) -> None:
        self._path = path
        self._stamp = {"attempt": attempt, "continuation": continuation}

    def append(self, kind: Kind, update: int, row: dict[str, Any]) -> None:
        """Append one row of `kind` for the state after `update` updates."""
        append_jsonl(self._path, {"kind": kind, "update": update, **self._stamp, **row})

    def sync(self) -> None:
        """Make the rows durable; called before a checkpoint that follows them is published."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def live_rows(path: Path, kind: Kind = "update") -> list[dict[str, Any]]:
    """The rows of the line as it now stands, by update: a row replaces its earlier twin.

    A resume goes back to a checkpoint, so the first row it writes drops every row of later updates that an
    earlier attempt had written; what is left is one row per update, as an uninterrupted run would have it.
    """
    rows: dict[int, dict[str, Any]] = {}
    attempt: Any = None
    for row in iterate_jsonl(path):
        update = row.get("update")
        if not isinstance(update, int):
            continue
        if row.get("attempt") != attempt:
            attempt = row.get("attempt")
            last_kept = update - 1 if row.get("kind") == "update" else update
            rows = {u: r for u, r in rows.items() if u <= last_kept}
        if row.get("kind") == kind:
            rows[update] = row
    return [rows[u] for u in sorted(rows)]
