"""The files of a data line's sources as they lie here: where each one is, and whether it is the pinned one.

A folder's files stay where they are and are only compared with their digests. Never reads text.
"""

from __future__ import annotations

from pathlib import Path

from trainer_core.data.folder import verify_file
from trainer_core.data.sources import DataLine, SourceFile, SourceSpec
from trainer_core.line.paths import DataPaths


class SourceFiles:
    """The pinned files of one data line."""

    def __init__(self, paths: DataPaths, line: DataLine) -> None:
        self._paths = paths
        self._files = {(spec.name, file.path): (spec, file) for spec in line.sources for file in spec.files}

    def pinned(self, source: str, path: str) -> SourceFile:
        """The pinned record of a file."""
        return self._files[source, path][1]

    def fetch(self, source: str, path: str) -> Path:
        """A file that is here and has the pinned digest. Raises Refused naming the file and both digests."""
        spec, file = self._files[source, path]
        return verify_file(self._root(spec), file)

    def discard(self, source: str, path: str) -> None:
        """The file is not needed any more; a folder's files are not ours and stay."""

    def _root(self, spec: SourceSpec) -> Path:
        assert spec.folder is not None
        return Path(spec.folder)
