"""The events of a line: rows of `events.jsonl` first, views (Prefect, the notify command) afterwards.

A row is never changed; that it was delivered is recorded by its id in `events.acked`, so a dead server delays
a notification and loses none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer_core.line.files import append_jsonl, iterate_jsonl
from trainer_core.line.paths import DataPaths, LinePaths

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_ulid() -> str:
    """A ULID: 48 bits of milliseconds and 80 random bits in Crockford base 32 (github.com/ulid/spec)."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def record_event(
    path: Path,
    kind: str,
    message: str,
    *,
    update: int | None = None,
    tokens: int | None = None,
    **details: Any,
) -> dict[str, Any]:
    """Append an event and return its row. `details` must be JSON values."""
    row: dict[str, Any] = {
        "id": new_ulid(),
        "time": time.time(),
        "kind": kind,
        "update": update,
        "tokens": tokens,
        "message": message,
        **details,
    }
    append_jsonl(path, row)
    return row


def pending_events(paths: LinePaths | DataPaths) -> list[dict[str, Any]]:
    """Events not yet delivered, oldest first."""
    done = {row.get("id") for row in iterate_jsonl(paths.acked)}
    return [row for row in iterate_jsonl(paths.events) if row.get("id") not in done]


def acknowledge(paths: LinePaths | DataPaths, ids: Iterable[str]) -> None:
    """Record that these events were delivered."""
    for event_id in ids:
        append_jsonl(paths.acked, {"id": event_id})
