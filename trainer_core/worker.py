"""The trainer process: `python -m trainer_core.worker --line RUN ...`, started by the supervisor.

It speaks only through the line directory and its exit code (trainer_core.errors). The lock and the device
lease arrive as inherited descriptors and stay held until this process ends, whatever happens around it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer_core.errors import NstrainError
from trainer_core.host import load_host
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import LinePaths
from trainer_core.telemetry.heartbeat import Heartbeat


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The worker's command line."""
    parser = argparse.ArgumentParser(prog="python -m trainer_core.worker", description=__doc__)
    parser.add_argument("--line", type=Path, required=True, help="directory of the training line")
    parser.add_argument("--cycles", type=int, default=None, help="train cycles 0 .. N-1 in all")
    parser.add_argument("--attempt", type=int, default=1, help="launch of the trainer over the line's life")
    parser.add_argument("--lock-fd", type=int, default=None, help="inherited descriptor of the line's lock")
    parser.add_argument("--lease-fd", type=int, default=None, help="inherited descriptor of the device lease")
    return parser.parse_args(argv)


def say(message: str) -> None:
    """A line of run.log, at once."""
    print(message, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one trainer to its end; returns the exit code."""
    args = parse_args(sys.argv[1:] if argv is None else argv)
    try:
        load_host()
    except NstrainError as error:
        say(str(error))
        return error.exit_code
    paths = LinePaths(args.line)
    Heartbeat(paths.heartbeat).beat("starting", 0)
    if args.lock_fd is None:
        lock = FileLock.acquire(paths.lock, role="trainer")
    else:
        lock = FileLock.adopt(args.lock_fd, paths.lock)
    if args.lease_fd is not None:
        os.set_inheritable(args.lease_fd, False)
    # After the environment is set, because torch reads its variables at import.
    from trainer_core.ops.start import start_line
    from trainer_core.train.control import Control
    from trainer_core.train.loop import Loop
    from trainer_core.train.outcome import Session, run_to_end
    from trainer_core.train.trainer import make_trainer

    control = Control(paths, parent=os.getppid() if args.lock_fd is not None else None)
    control.install_handlers()

    def make() -> Loop:
        start_line(paths.root)
        return make_trainer(paths, control=control, attempt=args.attempt, say=say)

    session = Session(make)
    code, message = run_to_end(paths, session, lambda: session.train(args.cycles))
    say(message)
    assert lock.fd >= 0
    return code


if __name__ == "__main__":
    sys.exit(main())
