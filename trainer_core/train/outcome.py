"""How a trainer ends: from what its loop raised, or did not, to an exit code, an event and a last message."""

from __future__ import annotations

from collections.abc import Callable

from trainer_core.errors import DiskFull, NstrainError, outcome_of
from trainer_core.line.events import record_event
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import clear_stop
from trainer_core.train.loop import Loop, Stopped


class Session:
    """One trainer, made when it is first needed and kept warm from cycle to cycle."""

    def __init__(self, make: Callable[[], Loop]) -> None:
        self._make = make
        self._loop: Loop | None = None

    def train(self, target: int | None) -> None:
        """Train until cycles 0 .. target-1 are done or the schedule ends; raises what `Loop.run` raises."""
        if self._loop is None:
            self._loop = self._make()
        self._loop.run(target)

    @property
    def loop(self) -> Loop | None:
        """The trainer, once it was needed."""
        return self._loop


def run_to_end(paths: LinePaths, session: Session, drive: Callable[[], None]) -> tuple[int, str]:
    """Call `drive` and turn its end into an exit code and a message, recorded as the line's last event.

    Errors that are not ours pass through: they are crashes and keep their traceback.
    """
    try:
        drive()
        finished = session.loop is not None and session.loop.finished
        code, message = 0, "the schedule has ended" if finished else "the requested cycles are trained"
    except Stopped as stopped:
        code, message = stopped.reason.exit_code, str(stopped)
        if stopped.reason.request is not None:
            clear_stop(paths)
    except NstrainError as error:
        code, message = error.exit_code, str(error)
    progress = session.loop.done if session.loop is not None else None
    if progress is not None and code in (0, 10, 50):
        message = f"{message}; checkpoint u{progress.update}"
    try:
        record_event(
            paths.events,
            "terminated" if code == 50 else outcome_of(code).status.replace("-", "_"),
            message,
            update=progress.update if progress else None,
            tokens=progress.tokens if progress else None,
            exit_code=code,
        )
    except DiskFull as full:
        # The event cannot be written where the disk is full; code and message still say so.
        return (code, message) if code == full.exit_code else (full.exit_code, str(full))
    return code, message
