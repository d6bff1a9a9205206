"""What may end a trainer from outside: STOP requests, signals, a parent that is gone.

Polled once per update and in every wait; never acts by itself, so that the loop alone decides where to stop.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from types import FrameType

from trainer_core.line.lock import holder
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import StopRequest, read_stop


@dataclass(frozen=True, kw_only=True)
class StopReason:
    """Why to stop at this boundary."""

    exit_code: int
    """10 for a request, 50 for a signal or a lost parent."""
    message: str
    """For the event and the state."""
    request: StopRequest | None = None
    """The request that is obeyed."""


class Control:
    """Watches for reasons to stop. `parent` is the supervisor's pid, None when there is none (inline)."""

    def __init__(self, paths: LinePaths, *, parent: int | None) -> None:
        self._paths = paths
        self._parent = parent
        self._signal: int | None = None

    def install_handlers(self) -> None:
        """Turn SIGTERM and SIGINT into flags; a second one of the same kind acts at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signal = number
        signal.signal(number, signal.SIG_DFL)

    def orphaned(self) -> bool:
        """Whether the supervisor that started this process has ended."""
        if self._parent is None:
            return False
        if os.getppid() != self._parent:
            return True
        owner = holder(self._paths.lock)
        return owner is not None and owner.pid == self._parent and not owner.alive()

    def poll(self, *, update: int, cycles_done: int, at_cycle_end: bool) -> StopReason | None:
        """The reason to stop at this boundary, or None."""
        if self._signal is not None:
            name = signal.Signals(self._signal).name
            if self._signal == signal.SIGINT and self._parent is None:
                return StopReason(exit_code=10, message="interrupted by the keyboard")
            return StopReason(exit_code=50, message=f"received {name}")
        if self.orphaned():
            return StopReason(exit_code=50, message="the supervisor is gone")
        request = read_stop(self._paths)
        if request is not None and request.due(
            update=update, cycles_done=cycles_done, at_cycle_end=at_cycle_end
        ):
            return StopReason(exit_code=10, message=f"stop requested by {request.by}", request=request)
        return None
