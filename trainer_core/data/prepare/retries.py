"""When a step of preparing data that broke off is tried again, and when somebody is told.

Only for what may not repeat itself: a process that died, a file system that failed. Refusals and used-up data
are final, and waits for a hub or for room on the disk are no failures.
"""

from __future__ import annotations

from trainer_core.line.events import record_event
from trainer_core.line.paths import DataPaths

RETRIES = 50
"""Further runs of a step that broke off, some eight hours with the waits between them."""

FAILING = 3
"""Failures in a row of which an event tells."""


def delay_seconds(run_count: int) -> float:
    """Wait before this run of a step, by how often it has run, this one included."""
    return 0.0 if run_count <= 1 else float(min(10 * 2 ** min(run_count - 2, 10), 600))


def tell_of_failure(paths: DataPaths, step: str, cycle: int, *, failures: int, why: str) -> None:
    """Record that a step keeps failing, once it has."""
    if failures == FAILING:
        message = f"Cycle {cycle}: {step} has failed {failures} times in a row and is tried again: {why}"
        record_event(paths.events, "preparer_failing", message, cycle=cycle, step=step, failures=failures)
