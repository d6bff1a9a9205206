"""Taking what a trainer needs before it may start: the line's lock and the device.

Both are kernel locks on files that end with their last holder, so a trainer that outlived its supervisor
still has them: it is waited for, never doubled. Whoever else holds the line is running it: refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from trainer_core.errors import Refused
from trainer_core.host import state_dir
from trainer_core.line.identity import ProcessIdentity, boot_id
from trainer_core.line.lock import Busy, FileLock, held, holder
from trainer_core.line.paths import LinePaths
from trainer_core.supervise.backoff import Policy
from trainer_core.supervise.record import SupervisorRecord, read_record
from trainer_core.supervise.watch import end_group, end_stranger
from trainer_core.telemetry.heartbeat import read_heartbeat

_SETTLE_SECONDS = 2.0
"""Time a holder has to write its name into a lock it has just taken."""

Notice = Callable[[str], None]
"""Called again and again while waiting, with the reason."""


def lease_path(device: str) -> Path:
    """The lock file of a device of this host, shared by all lines of this user."""
    return state_dir() / "leases" / f"{device}.lock"


def refuse_if_run(paths: LinePaths) -> None:
    """Raise Refused when a live process runs the line; an orphaned trainer's line may be started."""
    if not held(paths.lock):
        return
    owner = holder(paths.lock)
    if owner is not None and owner.alive() and not _orphan(owner, read_record(paths)):
        raise Refused(being_run(paths, owner))


def being_run(paths: LinePaths, owner: ProcessIdentity | None) -> str:
    """The message for a second start of a line."""
    who = f"process {owner.pid}" if owner else "another process"
    since = _since(paths.lock)
    first = (
        "it is about to stop, wait for that"
        if paths.stop.exists()
        else f"stop it first (`nstrain stop {paths.root}`)"
    )
    return (
        f"line {paths.name} is being run by {who}{since}; {first} or follow it "
        f"(`nstrain status {paths.root}`)"
    )


def take_line(
    paths: LinePaths,
    *,
    timeout_seconds: float,
    policy: Policy,
    notice: Notice,
    give_up: Callable[[], bool] = lambda: False,
) -> FileLock | None:
    """The line's lock, after a wait for an orphaned trainer if there is one; None when `give_up` says so.

    Raises Refused when a live supervisor or an inline run has the line, or when the orphan does not end. An
    orphan without a heartbeat for `timeout_seconds` is killed, as its supervisor would have done.
    """
    started = time.monotonic()
    while True:
        try:
            return FileLock.acquire(paths.lock, role="trunk")
        except Busy as busy:
            waited = time.monotonic() - started
            owner, record = busy.holder, read_record(paths)
            if owner is None and waited < _SETTLE_SECONDS:
                time.sleep(policy.poll_seconds)
                continue
            if owner is None or (owner.alive() and not _orphan(owner, record)):
                raise Refused(being_run(paths, owner)) from None
            if give_up():
                return None
            if waited > policy.orphan_seconds:
                raise Refused(
                    f"line {paths.name}: a trainer of an earlier run still holds the line after "
                    f"{waited:.0f} s; end it by hand, then start again"
                ) from None
            _end_if_silent(paths, record, started, timeout_seconds, policy)
            notice("waiting for the trainer of an earlier run to finish its checkpoint")
            time.sleep(policy.poll_seconds)


def take_device(
    device: str, *, policy: Policy, notice: Notice, give_up: Callable[[], bool] = lambda: False
) -> FileLock | None:
    """The device's lease, waiting while another line has it; None when `give_up` says so first."""
    path = lease_path(device)
    while True:
        try:
            return FileLock.acquire(path, role="line")
        except Busy as busy:
            if give_up():
                return None
            who = f"process {busy.holder.pid}" if busy.holder else "another process"
            notice(f"device {device} is used by another line ({who}{_since(path)})")
            time.sleep(policy.poll_seconds)


def _orphan(owner: ProcessIdentity, record: SupervisorRecord) -> bool:
    """Whether a live holder is the trainer of a supervisor that has died."""
    supervised = record.supervisor is not None and record.supervisor.alive()
    return owner == record.trainer and not supervised


def _end_if_silent(
    paths: LinePaths, record: SupervisorRecord, started: float, timeout_seconds: float, policy: Policy
) -> None:
    trainer = record.trainer
    if trainer is None:
        return
    if not trainer.alive():
        if trainer.boot_id == boot_id() and ProcessIdentity.of(trainer.pid) is None:
            end_group(trainer.pid, policy=policy)  # its children still have the lock
        return
    beat = read_heartbeat(paths.heartbeat)
    own = beat is not None and beat.process == trainer
    last = max(started, beat.monotonic) if beat is not None and own else started
    if time.monotonic() - last > timeout_seconds:
        end_stranger(trainer, policy=policy)


def _since(path: Path) -> str:
    """` since ...` from a lock file, or nothing."""
    try:
        since = json.loads(path.read_text(encoding="utf-8"))["since"]
        return time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(since))
    except (OSError, ValueError, KeyError, TypeError):
        return ""
