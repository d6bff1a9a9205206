"""Stop requests: what a person wants of a line (`wanted.json`) and the request its trainer obeys (`STOP`).

Verbs write both; the trainer alone removes STOP, when it has obeyed. An empty STOP file (made by hand with
`touch`) means: at the next update.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Literal

from trainer_core.errors import Refused
from trainer_core.line.events import new_ulid
from trainer_core.line.files import write_json
from trainer_core.line.lock import held
from trainer_core.line.no_line import require_line
from trainer_core.line.paths import LinePaths


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """One request; with neither bound it means the next update."""

    id: str
    """ULID; empty for a STOP file made by hand."""
    at_cycle_end: int | None
    """Stop exactly when this cycle is trained, or at the first cycle end after it."""
    at_update: int | None
    """Stop when this many updates are done, or at the next update when they already are."""
    by: str
    """Who asked: a verb, a flow, `cancel`."""
    time: float
    """Seconds since the epoch."""

    def due(self, *, update: int, cycles_done: int, at_cycle_end: bool) -> bool:
        """Whether a line with `update` updates and `cycles_done` whole cycles stops here."""
        if self.at_cycle_end is not None:
            return at_cycle_end and cycles_done > self.at_cycle_end
        return self.at_update is None or update >= self.at_update


def want(paths: LinePaths, state: Literal["running", "stopped"], by: str) -> None:
    """Record what is wanted of the line, for whoever starts or relaunches it."""
    write_json(paths.wanted, {"format": "wanted/1", "wanted": state, "by": by, "time": time.time()})


def request_stop(
    paths: LinePaths, *, at_cycle_end: int | None = None, at_update: int | None = None, by: str
) -> StopRequest | None:
    """Ask the line to stop with a checkpoint; None when it is not running (then only `wanted` changes).

    Raises Refused for a missing line or for two bounds at once. A later request replaces an earlier one.
    """
    bounds = {"at_cycle_end": at_cycle_end, "at_update": at_update}
    given = {name: value for name, value in bounds.items() if value is not None}
    problems = ["stop: give at_cycle_end or at_update, not both"] if len(given) > 1 else []
    problems += [f"stop: {name}: expected 0 or more, found {n}" for name, n in given.items() if n < 0]
    if problems:
        raise Refused(problems)
    require_line(paths.root)
    want(paths, "stopped", by)
    if not held(paths.lock):
        return None
    request = StopRequest(
        id=new_ulid(), at_cycle_end=at_cycle_end, at_update=at_update, by=by, time=time.time()
    )
    write_json(paths.stop, {"format": "stop/1", **request.__dict__})
    return request


def read_stop(paths: LinePaths) -> StopRequest | None:
    """The pending request, or None. Anything unreadable in STOP means: now, asked for when it was made."""
    try:
        made = paths.stop.stat().st_mtime
        value = None if paths.stop.is_dir() else json.loads(paths.stop.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        value = {}

    def number(key: str) -> int | None:
        found = value.get(key)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    asked = value.get("time")
    return StopRequest(
        id=str(value.get("id", "")),
        at_cycle_end=number("at_cycle_end"),
        at_update=number("at_update"),
        by=str(value.get("by", "STOP file")),
        time=asked if isinstance(asked, float) else made,
    )


def clear_stop(paths: LinePaths) -> None:
    """Remove the request after it was obeyed, or before a new start."""
    if paths.stop.is_dir():
        paths.stop.rmdir()
    else:
        paths.stop.unlink(missing_ok=True)
