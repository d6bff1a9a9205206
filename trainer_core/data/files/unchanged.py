"""Whether a file stayed as it was from the comparison with its pin to the end of its reading.

Readers open a file by its name again, so what they read is the pinned text only if nothing moved meanwhile.
Looks at files and compares hashes again where a look cannot tell; reads no text.
Invariant: a block under `unchanged` that ends well has read the pinned bytes, unless they were swapped for
others and back by renaming alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainer_core.data.files.pinned_file import PinnedFile, difference
from trainer_core.errors import Refused

_YOUNG_NS = 2 * 10**9


@dataclass(frozen=True, kw_only=True)
class Look:
    """A file as it was looked at."""

    written: tuple[int, int, int, int] | None
    """Device, inode, size and time of writing in ns; None when there is nothing to look at."""
    changed_ns: int = 0
    """Time of the last change of any kind: nobody can set it back."""
    young: bool = False
    """So recently changed that a further change within one tick of the file system's clock shows nothing."""


def look(path: Path) -> Look:
    """Look at the file that a path leads to."""
    now = time.time_ns()
    try:
        status = os.stat(path)
    except OSError:
        return Look(written=None)
    return Look(
        written=(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns),
        changed_ns=status.st_ctime_ns,
        young=max(status.st_mtime_ns, status.st_ctime_ns) > now - _YOUNG_NS,
    )


@contextmanager
def unchanged(path: Path, file: PinnedFile, before: Look) -> Iterator[None]:
    """Raise Refused at the block's end when the file is not as it was at `before`, or not the pinned one.

    `before` is from before its comparison with the pin. Any error of the block that such a change may explain
    is told as the change.
    """
    try:
        yield
    except Exception as error:
        if (problem := _change(path, file, before)) is not None:
            raise Refused(problem) from error
        raise
    if (problem := _change(path, file, before)) is not None:
        raise Refused(problem)


def _change(path: Path, file: PinnedFile, before: Look) -> str | None:
    after = look(path)
    if after.written == before.written and after.changed_ns == before.changed_ns and not before.young:
        return None
    if (problem := difference(path, file)) is not None:
        return f"{path}: {problem}: it changed while it was read; put the pinned file back and start again"
    if after.written == before.written:
        return None  # a new link to it, or other permissions
    return (
        f"{path}: was written to while it was read, though it is the pinned file again; start again when "
        "nothing writes to it"
    )
