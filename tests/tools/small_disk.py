"""A real file system of a few megabytes, and a file that takes its space."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(mount: Path, *, megabytes: int = 8) -> Iterator[Path]:
    """A file system mounted at `mount`; the test is skipped where that is not allowed."""
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(mount)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(mount: Path, *, leave: int) -> Path:
    """Take all space but `leave` bytes."""
    filler = mount / "filler"
    free = shutil.disk_usage(mount).free
    filler.write_bytes(b"\0" * max(0, free - leave))
    return filler
