"""`nstrain data run-preparer`: prepare cycles ahead of a line in this process, without Prefect.

What to do comes from `next_actions`, as for the line's own run and for the flow `prepare`; all three may run
at once, since every step is idempotent and a cycle has one lock. Trained cycles that a stop or a crash left
are deleted on the way. Never trains.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from trainer_core.data.hub.waiting import Say
from trainer_core.data.plan.consumer import read_consumer
from trainer_core.data.prepare.disk_wait import with_room
from trainer_core.data.prepare.files import Effort
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.prepare.retries import RETRIES, delay_seconds, tell_of_failure
from trainer_core.errors import DiskFull, Leaving, NstrainError, Refused
from trainer_core.line.config import load_run
from trainer_core.line.cycles import Delete, Download, Tokenize, next_actions
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.ops.facts import read_facts

FOLLOW_SECONDS = 2.0
"""Time between two looks at a line that has what it needs."""

STOPPED = 10
"""Exit code after a request to end."""

Step = Download | Tokenize | Delete


def line_of(path: Path) -> LinePaths:
    """The training line at `path`, or the one that consumes the data line there."""
    if not LinePaths(path).run_json.exists() and DataPaths(path).data.exists():
        path = Path(read_consumer(path).line)
    load_run(LinePaths(path))
    return LinePaths(path)


class Ahead:
    """What there is to prepare ahead of a line."""

    def __init__(self, line: LinePaths, *, cycles_ahead: int, cycles: int | None) -> None:
        """Prepare up to `cycles_ahead` cycles beyond the one in training; `cycles` ends it after so many."""
        if cycles_ahead < 0 or (cycles is not None and cycles < 1):
            raise Refused(f"cycles_ahead {cycles_ahead}, cycles {cycles}: expected at least 0 and at least 1")
        self._line = line
        self._cycles = cycles
        self._ahead = cycles_ahead
        self.done: list[str] = []
        """What was done, in words."""
        self._last: Step | None = None

    @property
    def data(self) -> Path:
        """The data line."""
        return Path(load_run(self._line).data)

    def next_step(self) -> Step | None:
        """The next step, or None while the line has what it needs.

        A step that comes twice in a row had no effect: it is left alone until something else is to be done.
        """
        actions = next_actions(read_facts(self._line.root, self._cycles, ahead=self._ahead))
        steps = [action for action in actions if isinstance(action, Step) and action != self._last]
        return steps[0] if steps else None

    def finish(self, step: Step) -> None:
        """The step is done."""
        self._last = step
        self.done.append(f"{type(step).__name__.lower()} of cycle {step.cycle}")

    def over(self) -> bool:
        """Whether the line will need nothing any more."""
        return not next_actions(read_facts(self._line.root, self._cycles, ahead=self._ahead))

    def message(self) -> str:
        """What was done, the last of it in words."""
        if len(self.done) > 12:
            return f"{len(self.done)} steps, the last: {', '.join(self.done[-4:])}"
        return ", ".join(self.done) or "everything is prepared already"


def run_preparer(
    work: Path,
    *,
    cycles_ahead: int = 1,
    cycles: int | None = None,
    follow: bool = True,
    say: Say = print,
    effort: Effort | None = None,
) -> tuple[int, str]:
    """Prepare cycles ahead of a line (or of a data line's consumer); exit code and message.

    With `follow` it goes on until the line needs nothing any more or the process is asked to end (SIGTERM,
    SIGINT: code 10); without, until the line has what it needs now.
    """
    with _asked_to_leave() as leaving:
        try:
            ahead = Ahead(line_of(work), cycles_ahead=cycles_ahead, cycles=cycles)
            preparer = CyclePreparer(ahead.data, leaving=leaving, say=say, effort=effort)
            told = False
            while True:
                step = ahead.next_step()
                if step is not None:
                    say(f"cycle {step.cycle}: {type(step).__name__.lower()}")
                    _do(step, preparer, leaving, say)
                    ahead.finish(step)
                elif not follow or ahead.over():
                    return 0, ahead.message()
                else:
                    if not told:
                        say("the line has what it needs; following it until SIGTERM or Ctrl-C")
                    told = True
                    if leaving.wait(FOLLOW_SECONDS):
                        return STOPPED, f"ended on request; {ahead.message()}"
        except Leaving as left:
            return STOPPED, f"ended on request: {left}"
        except NstrainError as error:
            return error.exit_code, str(error)


def _do(step: Step, preparer: CyclePreparer, leaving: Event, say: Say) -> None:
    """One step, tried again when it broke off without saying that it cannot be done."""
    for run_count in range(1, RETRIES + 2):
        try:
            if leaving.wait(delay_seconds(run_count)):
                raise Leaving("left before another try; finished files stay")
            with_room(preparer, step.cycle, lambda: _run(step, preparer), leaving=leaving, say=say)
            return
        except (OSError, RuntimeError) as error:
            name = type(step).__name__.lower()
            say(f"cycle {step.cycle}: {name} broke off: {error}")
            if run_count > RETRIES:
                raise
            try:
                tell_of_failure(preparer.paths, name, step.cycle, failures=run_count, why=str(error))
            except DiskFull as full:
                say(str(full))


def _run(step: Step, preparer: CyclePreparer) -> None:
    match step:
        case Download(cycle):
            preparer.download(cycle)
        case Tokenize(cycle):
            preparer.tokenize(cycle)
        case Delete(cycle):
            preparer.delete_cycle(cycle)


@contextmanager
def _asked_to_leave() -> Iterator[Event]:
    """An event that SIGTERM and SIGINT set; a second one ends the process at once, as every step allows."""
    leaving = Event()
    if threading.current_thread() is not threading.main_thread():
        yield leaving
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, frame: object) -> None:
        leaving.set()
        signal.signal(number, signal.SIG_DFL)

    try:
        for number in before:
            signal.signal(number, ask)
        yield leaving
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
