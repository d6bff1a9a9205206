"""`supervisor.json`: what the supervisor of a line knows and must still know after its own death.

Written only by the process that holds the line's lock. Unknown keys of newer versions are kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trainer_core.errors import Outcome, Refused
from trainer_core.line.files import read_json, write_json
from trainer_core.line.identity import ProcessIdentity
from trainer_core.line.paths import LinePaths

FORMAT = "supervisor/1"

State = Literal["starting", "awaiting-orphan", "awaiting-gpu", "backoff", "running", "ended"]


@dataclass(frozen=True, kw_only=True)
class SupervisorRecord:
    """One line's supervision, past and present."""

    state: State = "starting"
    """What the supervisor is doing; meaningful while `supervisor` is alive."""
    reason: str = ""
    """The same in a sentence."""
    since: float = 0.0
    """When that state began, seconds since the epoch."""
    supervisor: ProcessIdentity | None = None
    """Process that supervises the line, or did last."""
    run: str | None = None
    """What the starter of that supervisor calls its run: the id of a flow run."""
    trainer: ProcessIdentity | None = None
    """Trainer process it started last."""
    launches: int = 0
    """Trainer processes started for this line so far; the last one's attempt number."""
    failures: int = 0
    """Failures without progress."""
    failure_update: int | None = None
    """Newest update of the line at its last failure; progress is to get beyond it."""
    progress_update: int = 0
    """Newest update known."""
    progress_time: float = 0.0
    """When it was seen first, seconds since the epoch."""
    next_start: float | None = None
    """End of a backoff, seconds since the epoch."""
    last_event: dict[str, Any] | None = None
    """The newest event the supervisor recorded."""
    outcome: dict[str, Any] | None = None
    """How the last supervision ended (code, name, status, message, time); None while it goes on."""
    other: dict[str, Any] = field(default_factory=dict)
    """Keys of other versions."""

    def to_dict(self) -> dict[str, Any]:
        """The file's content."""
        return {
            **self.other,
            "format": FORMAT,
            "state": self.state,
            "reason": self.reason,
            "since": self.since,
            "supervisor": self.supervisor.to_dict() if self.supervisor else None,
            "run": self.run,
            "trainer": self.trainer.to_dict() if self.trainer else None,
            "launches": self.launches,
            "failures_without_progress": self.failures,
            "failure_update": self.failure_update,
            "last_progress": {"update": self.progress_update, "time": self.progress_time},
            "next_start": self.next_start,
            "last_event": self.last_event,
            "outcome": self.outcome,
        }

    def entering(self, state: State, reason: str, *, next_start: float | None = None) -> SupervisorRecord:
        """The record after a change of state, now."""
        return replace(self, state=state, reason=reason, since=time.time(), next_start=next_start)

    def ended(self, outcome: Outcome, message: str) -> SupervisorRecord:
        """The record of a supervision that is over."""
        return replace(
            self.entering("ended", message),
            outcome={
                "code": outcome.code,
                "name": outcome.state_name,
                "status": outcome.status,
                "message": message,
                "time": time.time(),
            },
        )


_KNOWN = set(SupervisorRecord().to_dict())


def read_record(paths: LinePaths) -> SupervisorRecord:
    """The line's record; an empty one when there is none or it cannot be read."""
    try:
        value = read_json(paths.supervisor)
    except Refused:
        return SupervisorRecord()
    progress = value.get("last_progress") or {}
    return SupervisorRecord(
        state=value.get("state", "ended"),
        reason=value.get("reason", ""),
        since=value.get("since", 0.0),
        supervisor=ProcessIdentity.from_dict(value.get("supervisor")),
        run=value.get("run"),
        trainer=ProcessIdentity.from_dict(value.get("trainer")),
        launches=value.get("launches", 0),
        failures=value.get("failures_without_progress", 0),
        failure_update=value.get("failure_update"),
        progress_update=progress.get("update", 0),
        progress_time=progress.get("time", 0.0),
        next_start=value.get("next_start"),
        last_event=value.get("last_event"),
        outcome=value.get("outcome"),
        other={key: kept for key, kept in value.items() if key not in _KNOWN},
    )


def write_record(paths: LinePaths, record: SupervisorRecord) -> None:
    """Replace the line's record atomically."""
    write_json(paths.supervisor, record.to_dict())
