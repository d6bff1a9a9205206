"""An exclusive file lock with its holder's identity inside.

The kernel's flock decides; it ends when the last descriptor of the lock closes, so a lock handed to a child
process (pass its `fd` in `pass_fds`) is held until the child ends too. The identity is only for messages and
for telling an orphaned holder from a live one. On file systems where flock gives no exclusion, the identity of
a live holder is honoured as well.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from trainer_core.errors import Refused
from trainer_core.line.identity import ProcessIdentity


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
        me = ProcessIdentity.current()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder, held_role, since = _read_holder(fd)
            os.close(fd)
            raise Busy(path, holder, held_role, since) from None
        holder, held_role, since = _read_holder(fd)
        if holder is not None and holder != me and holder.alive():
            os.close(fd)
            raise Busy(path, holder, held_role, since)
        record = {"format": "lock/1", **me.to_dict(), "role": role, "since": time.time()}
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(record).encode("utf-8") + b"\n", 0)
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
