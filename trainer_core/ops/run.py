"""`nstrain run --inline`: the whole line in this process, one action after the other, without Prefect.

The same `next_actions` as the trunk flow; for tests, debugging and small lines. Nothing is prepared beside
training, because there is no beside.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.line.config import load_run
from trainer_core.line.cycles import Delete, Download, Tokenize, Train, next_actions
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import clear_stop, want
from trainer_core.ops.check import check_line
from trainer_core.ops.facts import NOTHING_TO_DO, read_facts
from trainer_core.ops.start import start_line
from trainer_core.supervise.reading import last_attempt
from trainer_core.supervise.record import read_record

STOPPED = 10
"""Exit code after a stop that was asked for."""


def run_inline(
    line: Path, *, cycles: int | None = None, wait: bool = True, say: Callable[[str], None] = print
) -> tuple[int, str]:
    """Train a line here until its end, until cycles 0 .. cycles-1 are trained, or until it stops.

    Returns the exit code and a message. With `wait` false an unprepared cycle ends the run with code 30
    instead of being prepared. Raises Refused when somebody else runs the line.
    """
    paths = LinePaths(line)
    check_line(line)
    config = load_run(paths)
    with FileLock.acquire(paths.lock, role="inline run"):
        start_line(line)
        if not next_actions(read_facts(line, cycles)):
            return 0, NOTHING_TO_DO
        clear_stop(paths)
        want(paths, "running", "run --inline")
        return _drive(paths, CyclePreparer(Path(config.data)), cycles=cycles, prepare=wait, say=say)


def _drive(
    paths: LinePaths,
    preparer: CyclePreparer,
    *,
    cycles: int | None,
    prepare: bool,
    say: Callable[[str], None],
) -> tuple[int, str]:
    # Imported here so that `nstrain run` without --inline never pays for torch.
    from trainer_core.train.control import Control
    from trainer_core.train.outcome import Session, run_to_end
    from trainer_core.train.trainer import make_trainer, recover

    control = Control(paths, parent=None)
    control.install_handlers()
    attempt = max(read_record(paths).launches, last_attempt(paths)) + 1
    session = Session(
        lambda: make_trainer(paths, control=control, attempt=attempt, wait_for_data=prepare, say=say)
    )

    def drive() -> None:
        recover(paths)  # before the facts: they must not count a damaged checkpoint
        while actions := next_actions(read_facts(paths.root, cycles)):
            match actions[0]:
                case Delete(cycle):
                    preparer.delete_cycle(cycle)
                case Train(cycle):
                    session.train(cycle + 1)
                case Download(cycle) | Tokenize(cycle) if not prepare:
                    session.train(cycle + 1)
                case Download(cycle):
                    say(f"cycle {cycle}: checking its files")
                    preparer.download(cycle)
                case Tokenize(cycle):
                    say(f"cycle {cycle}: tokenizing")
                    preparer.tokenize(cycle)

    code, message = run_to_end(paths, session, drive)
    if code in (0, STOPPED):
        for action in next_actions(read_facts(paths.root, cycles)):
            if isinstance(action, Delete):
                preparer.delete_cycle(action.cycle)
    return code, message
