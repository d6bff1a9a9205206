"""One run of a line inside a flow: what its tasks share. Reads the line's files, writes none."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tasks.artifacts import Pages
from tasks.data import StepCommand
from trainer_core.line.cycles import LineFacts
from trainer_core.line.files import stamp
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.supervise.session import Session

_FULL_LOOK_SECONDS = 30.0


class CachedFacts:
    """Reads a line's facts when a file that they come from has changed, and now and then anyway."""

    def __init__(self, paths: LinePaths, data: DataPaths, cycles: int | None) -> None:
        self._paths = paths
        self._cycles = cycles
        self._watched = (paths.checkpoints, paths.run_json, data.cycles, data.manifests, data.cycles_log)
        self._seen: tuple[object, ...] = ()
        self._facts: LineFacts | None = None
        self._when = float("-inf")

    def __call__(self, *, fresh: bool = False) -> LineFacts:
        """The facts now; `fresh` reads them in any case."""
        from trainer_core.ops.facts import read_facts

        seen = tuple(stamp(path) for path in self._watched)
        facts = self._facts
        late = time.monotonic() - self._when > _FULL_LOOK_SECONDS
        if facts is None or fresh or late or seen != self._seen:
            facts = read_facts(self._paths.root, self._cycles)
            self._facts, self._seen, self._when = facts, seen, time.monotonic()
        return facts


@dataclass(frozen=True, kw_only=True, eq=False)
class LineRun:
    """Handles of one flow run; lives in the flow's process and is passed to its tasks by reference."""

    paths: LinePaths
    """The line."""
    data: Path
    """Its data line."""
    cycles: int | None
    """Train cycles 0..cycles-1 in all; None: to the end of the schedule."""
    session: Session
    """Supervision of its trainer."""
    pages: Pages
    """Its artifacts."""
    step_command: StepCommand
    """How a step of preparing data is started."""
    facts: CachedFacts
    """Reads where the line's cycles stand."""
    leaving: threading.Event = field(default_factory=threading.Event)
    """Set when the run is ending: waits and data steps end too."""
