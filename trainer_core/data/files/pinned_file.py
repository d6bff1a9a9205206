"""Whether a file on disk is the one that was pinned, by size and hash; Git LFS pointers are known by name.

Never repairs or fetches anything.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Protocol

from trainer_core.errors import Refused

_HASH_SLICE = 1 << 20
_POINTER_BYTES = 1024
_POINTER = re.compile(
    rb"version https?://(?:git-lfs|hawser)\.github\.com/spec/v\d+\r?\n(?:ext-\d+-.*\n)*oid \w+:[0-9a-f]+\r?\n"
)


class PinnedFile(Protocol):
    """A file as a listing knows it."""

    @property
    def path(self) -> str:
        """Relative to its folder or repository."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def digest(self) -> str:
        """Hex sha256 (64 digits), or git's blob sha1 (40 digits)."""


def digest_like(path: Path, digest: str) -> str:
    """The digest of a file's bytes, of the kind that `digest` is."""
    size = os.stat(path).st_size
    hasher = hashlib.sha256() if len(digest) == 64 else hashlib.sha1(b"blob %d\0" % size)
    with open(path, "rb") as file:
        while chunk := file.read(_HASH_SLICE):
            hasher.update(chunk)
    return hasher.hexdigest()


def is_pointer(path: Path) -> bool:
    """Whether a file is a Git LFS pointer: a few lines that stand for data that is not here."""
    try:
        if os.stat(path).st_size > _POINTER_BYTES:
            return False
        return _POINTER.match(path.read_bytes()) is not None
    except OSError:  # whoever needs its bytes says so
        return False


def refuse_pointer(path: Path) -> None:
    """Raises Refused when a file of a folder is a Git LFS pointer."""
    if is_pointer(path):
        raise Refused(
            f"{path}: is a Git LFS pointer, not the file that it stands for; fetch it with `git lfs pull`"
        )


def difference(path: Path, file: PinnedFile) -> str | None:
    """What makes the file at `path` another one than the pinned; None when it is that one."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return "is no regular file"
        if status.st_size != file.size:
            return f"has {status.st_size} bytes, {file.size} were pinned"
        found = digest_like(path, file.digest)
    except (FileNotFoundError, NotADirectoryError):
        return "is gone"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if found == file.digest:
        return None
    return f"{'sha256' if len(found) == 64 else 'git blob sha1'} is {found}, {file.digest} was pinned"
