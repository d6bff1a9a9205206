"""The files of a data line's sources as they lie here: where each one is, and whether it is the pinned one.

A folder's files stay where they are and are only compared with their digests. Never reads text.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event

from trainer_core.data.folder import verify_file
from trainer_core.data.hub_waiting import Patience, Say, say_nothing
from trainer_core.data.sources import DataLine, SourceFile, SourceSpec
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths


class SourceFiles:
    """The pinned files of one data line."""

    def __init__(
        self,
        paths: DataPaths,
        line: DataLine,
        *,
        leaving: Event | None = None,
        say: Say = say_nothing,
        patience: Patience = Patience(),  # noqa: B008 (frozen)
    ) -> None:
        self._paths = paths
        self._leaving = leaving
        self._say = say
        self._patience = patience
        self._files = {(spec.name, file.path): (spec, file) for spec in line.sources for file in spec.files}
        self._hubs = {spec.name for spec in line.sources if spec.repo is not None}

    def pinned(self, source: str, path: str) -> SourceFile:
        """The pinned record of a file."""
        return self._files[source, path][1]

    def is_hub(self, source: str) -> bool:
        """Whether the source's files are downloaded; else they lie in a folder."""
        return source in self._hubs

    def fetch(self, source: str, path: str) -> Path:
        """A file that is here and has the pinned digest. Raises Refused naming the file and both digests."""
        spec, file = self._files[source, path]
        return verify_file(self._root(spec), file)

    def refetch(self, source: str, path: str) -> Path:
        """A file again, because it could not be read: another copy of a downloaded one, or Refused."""
        spec, file = self._files[source, path]
        raise Refused(
            f"{self._root(spec) / file.path}: cannot be read, and lies in a folder that is not ours"
        )

    def discard(self, source: str, path: str) -> None:
        """The file is not needed any more: a download is deleted, a folder's files are not ours and stay."""

    def held(self) -> list[tuple[str, str]]:
        """(source, path) of every download that lies here, whole or in part, sorted."""
        return []

    def held_bytes(self) -> int:
        """Bytes on disk of all downloads, whole or in part."""
        incoming = self._paths.root / "incoming"
        return sum(os.stat(path).st_size for path in incoming.rglob("*") if path.is_file())

    def _root(self, spec: SourceSpec) -> Path:
        assert spec.folder is not None
        return Path(spec.folder)
