"""Starting the trainer process of a line: its command, its log, its descriptors. Never waits for it.

The trainer runs in its own OS session, so no signal meant for the supervisor reaches it; it inherits the
descriptors of the line's lock and of the device lease, so both are held until the last holder has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trainer_core
from trainer_core.line.paths import LinePaths
from trainer_core.supervise.reading import ATTEMPT_LINE

LOG_LIMIT_BYTES = 256 << 20
"""A run.log larger than this at a start becomes run.log.1."""

CHECKOUT = Path(trainer_core.__file__).parents[1]
"""Folder from which children import the same code as this process."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Everything that a trainer's command line says."""

    line: Path
    """The line directory."""
    cycles: int | None
    """Train cycles 0..cycles-1 in all; None: to the end of the schedule."""
    attempt: int
    """Number of this start in the line's life, stamped on its ledger rows."""
    lock_fd: int
    """Inherited descriptor of the line's lock."""
    lease_fd: int
    """Inherited descriptor of the device lease."""


Command = Callable[[Launch], Sequence[str]]
"""Makes the argument vector of a trainer; tests put a stand-in here."""


def trainer_command(launch: Launch) -> list[str]:
    """The command line of the real trainer."""
    command = [sys.executable, "-m", "trainer_core.worker", "--line", str(launch.line)]
    if launch.cycles is not None:
        command += ["--cycles", str(launch.cycles)]
    command += ["--lock-fd", str(launch.lock_fd), "--lease-fd", str(launch.lease_fd)]
    return [*command, "--attempt", str(launch.attempt)]


def start(launch: Launch, command: Command = trainer_command) -> subprocess.Popen[bytes]:
    """Start a trainer whose output is appended to run.log. Raises OSError when the program cannot start."""
    paths = LinePaths(launch.line)
    arguments = list(command(launch))
    rotate(paths.run_log)
    note(paths, f"attempt {launch.attempt}: {' '.join(arguments)}")
    with open(paths.run_log, "ab") as log:
        log.write(f"{ATTEMPT_LINE}{launch.attempt} ---\n".encode())
        log.flush()
        return subprocess.Popen(
            arguments,
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(launch.lock_fd, launch.lease_fd),
            start_new_session=True,
        )


def rotate(log: Path, limit_bytes: int = LOG_LIMIT_BYTES) -> None:
    """Move a log that has grown beyond the limit aside; one old log is kept."""
    if log.exists() and log.stat().st_size > limit_bytes:
        log.replace(log.with_name(f"{log.name}.1"))


def note(paths: LinePaths, text: str) -> None:
    """Append a line to supervisor.out: starts, ends and errors that no trainer could log itself."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    rotate(paths.supervisor_out)
    with open(paths.supervisor_out, "a", encoding="utf-8") as out:
        out.write(f"{stamp} {text}\n")
