"""The files of a data line's sources as they lie here: where each one is, and whether it is the pinned one.

A folder's files stay where they are and are only compared with their digests. A hub's files are downloaded
to D/incoming/<source>/<path> when they are wanted, and deleted when they are not wanted any more. Never reads
text. Invariant: a path that `fetch` returns holds the pinned bytes; they are compared at every use. A block
under `reading` that ends well has read these bytes and no others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from trainer_core.data.files.folder import verify_file
from trainer_core.data.files.unchanged import look, unchanged
from trainer_core.data.hub.api import fetch_to
from trainer_core.data.hub.transfer import part_of, remove_download, stage_of
from trainer_core.data.hub.waiting import Patience, Say, say_nothing
from trainer_core.data.sources import DataLine, SourceFile
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

_PATIENCE = Patience()


class SourceFiles:
    """The pinned files of one data line."""

    def __init__(
        self,
        paths: DataPaths,
        line: DataLine,
        *,
        leaving: Event | None = None,
        say: Say = say_nothing,
        patience: Patience = _PATIENCE,
    ) -> None:
        self._events = paths.events
        self._incoming = paths.incoming
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
        """A file that is here and has the pinned digest; a hub's file is downloaded when it is not.

        Raises Refused naming the file and both digests; for downloads also DiskFull, and Leaving when the
        process is asked to end while it waits.
        """
        spec, file = self._files[source, path]
        if spec.folder is not None:
            return verify_file(Path(spec.folder), file)
        return self._download(source, path)

    @contextmanager
    def reading(self, source: str, path: str, *, again: bool = False) -> Iterator[Path]:
        """A file as `fetch` gives it, or `refetch` with `again`, for a block that reads it.

        What the block made of it may be used after the block only: its end raises Refused when the file
        changed or vanished meanwhile. As `fetch`, else.
        """
        spec, file = self._files[source, path]
        bring = self.refetch if again else self.fetch
        if spec.folder is None:  # ours: nobody else writes to it, and a damaged one is downloaded again
            yield bring(source, path)
            return
        before = look(Path(spec.folder) / file.path)
        origin = bring(source, path)
        with unchanged(origin, file, before):
            yield origin

    def refetch(self, source: str, path: str) -> Path:
        """A file anew, because what `fetch` gave could not be read. Raises Refused for a folder's file."""
        spec, file = self._files[source, path]
        if spec.folder is not None:
            raise Refused(f"{Path(spec.folder) / file.path}: cannot be read; put a good copy there")
        self._say(f"{source}/{path}: cannot be read; downloaded again")
        return self._download(source, path, again=True)

    def discard(self, source: str, path: str) -> None:
        """The file is not needed any more: a download is deleted, a folder's files are not ours and stay."""
        if self.is_hub(source):
            target = self._target(source, path)
            remove_download(target)
            _remove_empty(target.parent, self._incoming)

    def is_held(self, source: str, path: str) -> bool:
        """Whether a download of the file lies here, whole or in part."""
        target = self._target(source, path)
        return self.is_hub(source) and any(
            place.exists() for place in (target, part_of(target), stage_of(target))
        )

    def held(self) -> list[tuple[str, str]]:
        """(source, path) of every download that lies here, whole or in part, sorted."""
        return [key for key in sorted(self._files) if self.is_held(*key)]

    def held_bytes(self) -> int:
        """Bytes on disk of all downloads, whole or in part."""
        total = 0
        for folder, _, names in os.walk(self._incoming):
            for name in names:
                try:
                    total += os.stat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    continue  # renamed or deleted meanwhile
        return total

    def _download(self, source: str, path: str, *, again: bool = False) -> Path:
        spec, file = self._files[source, path]
        assert spec.repo is not None and spec.commit is not None
        target = self._target(source, path)
        fetch_to(
            spec.repo,
            spec.commit,
            file,
            target,
            events=self._events,
            leaving=self._leaving,
            say=self._say,
            patience=self._patience,
            again=again,
        )
        return target

    def _target(self, source: str, path: str) -> Path:
        return self._incoming / source / path


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove folders that hold nothing any more, up to and without `top`."""
    while folder != top:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass  # another download's end was quicker
        except OSError:
            return  # something still lies in it
        folder = folder.parent
