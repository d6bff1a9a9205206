"""An exclusive file lock with its holder's identity inside.

The kernel's flock decides; it ends when the last descriptor of the lock closes, so a lock handed to a child
process (pass its `fd` in `pass_fds`) is held until the child ends too. The identity is only for messages and
for telling an orphaned holder from a live one. On file systems where flock gives no exclusion, the identity
of a live holder is honoured as well.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from trainer_core.errors import DiskFull, Refused, disk_full
from trainer_core.line.identity import ProcessIdentity

_PROBE_TRIES = 5
_PROBE_SECONDS = 0.05


class Busy(Refused):
    """The lock is held by someone else."""

    def __init__(self, path: Path, holder: ProcessIdentity | None, role: str, since: float | None) -> None:
        self.path = path
        self.holder = holder
        """Who took the lock; None when the file does not say."""
        alive = holder is not None and holder.alive()
        who = f"process {holder.pid} ({role})" if holder is not None else "another process"
        when = f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}" if since else ""
        ended = (
            "" if alive or holder is None else "; that process has ended, a child of it still holds the lock"
        )
        super().__init__(f"{path.parent}: already in use by {who}{when}{ended}")


class FileLock:
    """A held lock; release it or end the process (and its children that inherited the descriptor)."""

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path

    @classmethod
    def acquire(cls, path: Path, *, role: str) -> FileLock:
        """Take the lock now or raise Busy naming the holder; `role` says in a word what the holder does."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _flock(fd, path)
            _refuse_live_holder(fd, path)
            _write_holder(fd, role)
        except OSError as error:
            os.close(fd)
            if disk_full(error):
                raise DiskFull(f"{path}: no space left to lock it; free space and start again") from error
            raise
        except Busy:
            os.close(fd)
            raise
        return cls(fd, path)

    @classmethod
    def acquire_waiting(cls, path: Path, *, role: str, poll_seconds: float = 0.05) -> FileLock:
        """Take the lock, waiting for as long as somebody else holds it."""
        while True:
            try:
                return cls.acquire(path, role=role)
            except Busy:
                time.sleep(poll_seconds)

    @classmethod
    def adopt(cls, fd: int, path: Path) -> FileLock:
        """Take over a descriptor inherited from the process that acquired the lock."""
        os.set_inheritable(fd, False)
        return cls(fd, path)

    def release(self) -> None:
        """Give the lock back (for this descriptor; heirs of it go on holding). Safe to call twice."""
        if self.fd >= 0:
            os.ftruncate(self.fd, 0)
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Close this descriptor but leave the holder's record, for a lock that lives on in a child."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def held(path: Path) -> bool:
    """Whether somebody holds the lock; leaves no trace of its own, and needs no right to write."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def in_use(path: Path) -> Busy | None:
    """What taking the lock now would raise, or None when nobody holds it; leaves no trace of its own."""
    if not held(path):
        return None
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Busy(path, *_read_holder(fd))
    finally:
        os.close(fd)


def holder(path: Path) -> ProcessIdentity | None:
    """Identity written by the process that took the lock last, whether or not it still holds it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _read_holder(fd)[0]
    finally:
        os.close(fd)


def _flock(fd: int, path: Path) -> None:
    """Take the kernel's lock; a holder without a live record may be a reader's probe, so it gets a moment."""
    for attempt in range(_PROBE_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            who, role, since = _read_holder(fd)
            if attempt == _PROBE_TRIES - 1 or (who is not None and who.alive()):
                raise Busy(path, who, role, since) from None
            time.sleep(_PROBE_SECONDS)


def _refuse_live_holder(fd: int, path: Path) -> None:
    """Honour the record of another live process even where flock let us in."""
    who, role, since = _read_holder(fd)
    if who is not None and who != ProcessIdentity.current() and who.alive():
        raise Busy(path, who, role, since)


def _write_holder(fd: int, role: str) -> None:
    who = ProcessIdentity.current().to_dict()
    record = {"format": "lock/1", **who, "role": role, "since": time.time()}
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(record).encode("utf-8") + b"\n", 0)


def _read_holder(fd: int) -> tuple[ProcessIdentity | None, str, float | None]:
    """Identity, role and start of the lock from its file; empty while the holder is just writing it."""
    try:
        value = json.loads(os.pread(fd, 4096, 0) or b"null")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return None, "", None
    since = value.get("since")
    return (
        ProcessIdentity.from_dict(value),
        str(value.get("role", "")),
        float(since) if isinstance(since, int | float) else None,
    )
