"""A folder that appears whole or not at all: written beside its place, every file fsynced, then renamed.

While it is written it holds a mark: what a killed writer left is known by it from what is another's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer_core.errors import DiskFull, Refused, disk_full, path_refused
from trainer_core.line.files import fsync_dir, publish

PART_SUFFIX = ".part"
MARK = ".nstrain-export"


class Folder:
    """A folder being written; `files` has size and sha256 of what is in it so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: dict[str, dict[str, Any]] = {}

    def write(self, name: str, content: Iterable[bytes | memoryview]) -> None:
        """Write a file out of consecutive pieces."""
        digest, size = hashlib.sha256(), 0
        with open(self.path / name, "xb") as file:
            for piece in content:
                file.write(piece)
                digest.update(piece)
                size += len(piece)
            file.flush()
            os.fsync(file.fileno())
        self.files[name] = {"bytes": size, "sha256": digest.hexdigest()}

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file for people and programs."""
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        self.write(name, [text.encode("utf-8") + b"\n"])


@contextmanager
def new_folder(final: Path) -> Iterator[Folder]:
    """A folder that becomes `final` when the block ends, and is removed when it raises.

    Raises Refused when something is at `final` or in the way beside it, when somebody else is writing it,
    and when there can be no such path; and DiskFull.
    """
    refuse_taken(final)
    part = final.with_name(final.name + PART_SUFFIX)
    fd = _open(part, final)
    try:
        _take(fd, part)
        _empty(part)
        try:
            (part / MARK).touch()
            yield Folder(part)
            fsync_dir(part)
            refuse_taken(final)
            publish(part, final)
            (final / MARK).unlink()  # not before: until the rename the next writer needs it
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    except OSError as error:
        raise _said(error, final) from error
    finally:
        os.close(fd)


def refuse_taken(final: Path) -> None:
    """Raise Refused when something is at `final`; an empty folder is replaced."""
    if final.is_dir() and not final.is_symlink():
        if any(final.iterdir()):
            raise Refused(f"{final}: is not empty; name a folder that does not exist, or empty this one")
    elif final.exists() or final.is_symlink():
        raise Refused(f"{final}: is there and no folder; name one that does not exist")


def _open(part: Path, final: Path) -> int:
    """A descriptor of the folder, which is made if need be."""
    try:
        part.mkdir(parents=True, exist_ok=True)
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileExistsError, NotADirectoryError):
        raise Refused(f"{part}: a file is in the way; move it") from None
    except OSError as error:
        raise _said(error, final) from error


def _said(error: OSError, final: Path) -> Exception:
    """What to raise for an error of the system."""
    if disk_full(error):
        return DiskFull(f"{final}: no space left; nothing was written, free space and try again")
    return path_refused(error) or error


def _take(fd: int, part: Path) -> None:
    """The kernel's lock on the folder, which ends with this process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been published since it was opened: its lock is no longer that of the place.
        held = os.path.samestat(os.fstat(fd), os.stat(part))
    except (BlockingIOError, FileNotFoundError):
        held = False
    if not held:
        raise Refused(f"{part}: another process is writing it; wait for that, or name another folder")


def _empty(part: Path) -> None:
    """Remove what a writer that died left, and nothing else."""
    inside = list(part.iterdir())
    if inside and part / MARK not in inside:
        raise Refused(f"{part}: is in the way and no export's; move it, or name another folder")
    for path in sorted(inside, key=lambda path: path.name == MARK):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
