"""Rows of D/cycles.jsonl and D/events.jsonl about a cycle: the times that manifests must not hold.

Kinds: planned, downloaded, tokenize_started, tokenized, published, consumed, deleted. A step repeated after a
crash is not logged again.
"""

from __future__ import annotations

import time
from typing import Any

from trainer_core.line.events import record_event
from trainer_core.line.files import append_jsonl, iterate_jsonl
from trainer_core.line.paths import DataPaths

_MESSAGES = {
    "planned": "Cycle {cycle} is planned: {num_rows} rows",
    "downloaded": "Cycle {cycle}: {files} source files are here and match their hashes",
    "tokenize_started": "Cycle {cycle}: tokenizing begins",
    "tokenized": "Cycle {cycle}: {tokens} tokens are tokenized",
    "published": "Cycle {cycle} is ready to train",
    "consumed": "Cycle {cycle} is trained",
    "deleted": "Cycle {cycle}: shards deleted, {bytes} bytes",
}


def log_step(paths: DataPaths, cycle: int, kind: str, **details: Any) -> None:
    """Record that a cycle reached a step, unless that is recorded since the cycle's shards were last deleted.

    Deletion is recorded every time, the end of training once.
    """
    rows = [row for row in iterate_jsonl(paths.cycles_log) if row.get("cycle") == cycle]
    if kind != "consumed":
        deleted = [index for index, row in enumerate(rows) if row.get("kind") == "deleted"]
        rows = rows[deleted[-1] + 1 :] if deleted else rows
    known = (row for row in rows if row.get("kind") == kind)
    if any(all(row.get(key) == value for key, value in details.items()) for row in known):
        return
    record_event(
        paths.events,
        kind=kind,
        message=_MESSAGES[kind].format(cycle=cycle, **details),
        cycle=cycle,
        **details,
    )
    append_jsonl(paths.cycles_log, {"cycle": cycle, "kind": kind, "time": time.time(), **details})
