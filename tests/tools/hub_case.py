"""A hub with one commit, and what arrives of its files in a folder."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from tests.tools.hub import Hub
from tests.tools.hub_lines import QUICK, pinned_files
from trainer_core.data.hub.api import fetch_to
from trainer_core.data.hub.waiting import Patience

REPO = "owner/corpus"
LARGE = random.Random(0).randbytes(300_000)
"""Kept by sha256, as large files are."""
SMALL = b'{"text": "small"}\n'
"""Kept by git's blob sha1."""
both_ways = pytest.mark.parametrize("case", [False, True], indirect=True, ids=["direct", "redirected"])
"""Runs a test with a hub that sends files itself, and with one that redirects to a storage."""
FILES = {"data/large.parquet": LARGE, "data/small.jsonl": SMALL, "data/empty.txt": b""}


class HubCase:
    """A hub with one commit, and a folder to download to."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub = hub
        self.commit = hub.commit(REPO, FILES)
        self.files = pinned_files(REPO, self.commit)
        self.folder = folder
        self.said: list[str] = []
        hub.log.clear()

    def target(self, path: str) -> Path:
        return self.folder / path

    def fetch(self, path: str = "data/large.parquet", patience: Patience = QUICK, **more: object) -> bytes:
        target = self.target(path)
        options: dict[str, object] = {"patience": patience, "say": self.said.append, **more}
        fetch_to(REPO, self.commit, self.files[path], target, **options)  # type: ignore[arg-type]
        return target.read_bytes()

    def gets(self) -> list[str | None]:
        """The ranges of the file requests."""
        return [request.span for request in self.hub.requests("GET")]

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob(".*"))


def size_of(path: Path) -> int:
    """Bytes of a file; -1 when there is none."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        assert error.errno == errno.ENOENT
        return -1
