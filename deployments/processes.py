"""Starting processes that outlive the command, and ending recorded ones.

A process is only ever ended through its identity (pid, start time, boot), checked right before each signal:
a stranger that got a dead process's pid is never touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from trainer_core.line.identity import ProcessIdentity

_POLL_SECONDS = 0.1


def start_detached(
    command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path
) -> ProcessIdentity:
    """Start a process in its own session, its output appended to `log`; it does not end with the caller."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    identity = ProcessIdentity.of(process.pid)
    if identity is None:
        process.wait()
        raise ChildProcessError(f"{command[0]} ended at once with code {process.returncode}; see {log}")
    return identity


def wait_gone(identities: Iterable[ProcessIdentity], seconds: float) -> list[ProcessIdentity]:
    """Wait until the processes have ended; returns those that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    remaining = [identity for identity in identities if identity.alive()]
    while remaining and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        remaining = [identity for identity in remaining if identity.alive()]
    return remaining


def end(identities: Iterable[ProcessIdentity], *, grace_seconds: float) -> list[ProcessIdentity]:
    """End processes: SIGTERM, then SIGKILL for those still there; returns what survived even that."""
    remaining = list(identities)
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0)):
        for identity in remaining:
            send(identity, number)
        remaining = wait_gone(remaining, seconds)
    return remaining


def send(identity: ProcessIdentity, number: signal.Signals) -> None:
    """Signal a process if it is still the recorded one."""
    if identity.alive():
        with contextlib.suppress(ProcessLookupError):  # it may end between the check and the signal
            os.kill(identity.pid, number)


@dataclass(frozen=True, kw_only=True)
class Descendant:
    """A process below one of ours."""

    identity: ProcessIdentity
    """Which process."""
    command: tuple[str, ...]
    """Its arguments."""

    @property
    def line(self) -> Path | None:
        """The training line whose trainer this is, or None."""
        if "trainer_core.worker" not in self.command or "--line" not in self.command[:-1]:
            return None
        return Path(self.command[self.command.index("--line") + 1])


def descendants(identity: ProcessIdentity) -> list[Descendant]:
    """All live processes below a process, children in sessions of their own included."""
    if not identity.alive():
        return []
    found = []
    try:
        children = psutil.Process(identity.pid).children(recursive=True)
    except psutil.Error:
        return []
    for child in children:
        child_identity = ProcessIdentity.of(child.pid)
        try:
            command = tuple(child.cmdline())
        except psutil.Error:
            continue
        if child_identity is not None:
            found.append(Descendant(identity=child_identity, command=command))
    return found
