"""Where a source's files lie while a data line is made: listed with digests, and read one at a time.

A folder's files are hashed and read where they are. A repository's files are listed by the hub at one commit,
and a file is downloaded, compared with its digest, read and deleted again. Never reads text.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from trainer_core.data.files.folder import list_folder, pin_files
from trainer_core.data.files.listing import Glob, nearby, sort_out, strata_of
from trainer_core.data.files.unchanged import Look, look, unchanged
from trainer_core.data.hub import api as hub
from trainer_core.data.hub.waiting import Patience
from trainer_core.data.recipe.schema import SourceRecipe
from trainer_core.data.sources import SourceFile
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A source's files, pinned."""

    files: tuple[SourceFile, ...]
    """Sorted by path."""
    ignored: tuple[str, ...]
    """Matched paths that are no files of the source."""
    commit: str | None = None
    """Commit of a repository."""


class Place(Protocol):
    """A folder, or a repository at one commit."""

    label: str
    """Its name in messages."""

    def pin(self) -> Listed:
        """List and pin. Raises Refused with every problem."""

    def reading(self, file: SourceFile) -> AbstractContextManager[Path]:
        """A pinned file as a path, for as long as the block lasts."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What reaching a hub needs."""

    paths: DataPaths
    """Files of the data line in the making."""
    say: Callable[[str], None]
    """Receives what is waited for."""
    patience: Patience
    """How long a hub is waited for."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """The clock."""


class FolderPlace:
    """A folder on this machine."""

    def __init__(self, source: SourceRecipe) -> None:
        assert source.folder is not None
        self.label = source.folder
        self._folder = Path(source.folder)
        self._source = source
        self._looks: dict[str, Look] = {}

    def pin(self) -> Listed:
        """Hash every listed file."""
        listing = list_folder(self._folder, self._source.glob)
        self._looks = {path: look(self._folder / path) for path in listing.files}
        files = pin_files(self._folder, listing.files, self._source.stratum)
        return Listed(files=files, ignored=listing.ignored)

    @contextmanager
    def reading(self, file: SourceFile) -> Iterator[Path]:
        """The file itself. The block's end raises Refused when it is not as it was pinned any more."""
        path = self._folder / file.path
        with unchanged(path, file, self._looks[file.path]):
            yield path


class HubPlace:
    """A dataset repository."""

    def __init__(self, name: str, source: SourceRecipe, around: Surroundings) -> None:
        assert source.repo is not None
        self.label = source.repo
        self._repo = source.repo
        self._revision = source.revision or "main"
        self._commit = ""
        self._source = source
        self._around = around
        self._incoming = around.paths.incoming / name

    def pin(self) -> Listed:
        """Pin the commit that the revision stands for, and list it."""
        around = self._around
        events, say, patience = around.paths.events, around.say, around.patience
        found = hub.resolve(self._repo, self._revision, events=events, say=say, patience=patience)
        self._commit = found.commit
        self.label = f"{self._repo} at {found.commit[:12]}"
        self._check_age(found.last_modified)
        listed = hub.list_files(self._repo, found.commit, events=events, say=say, patience=patience)
        tree = {file.path: file for file in listed}
        pattern = Glob(self._source.glob)
        sizes = {path: file.size for path, file in tree.items() if pattern.matches(path)}
        if not sizes:
            raise Refused(
                f"{self.label} ({self._revision}): {self._source.glob!r} matches nothing; "
                f"{nearby(pattern, tree)}; correct the pattern, or name the revision that has these files"
            )
        listing = sort_out(sizes, self._source.glob, self.label)
        strata = strata_of(listing.files, self._source.stratum)
        files = tuple(
            SourceFile(path=path, size=tree[path].size, digest=tree[path].digest, stratum=strata[path])
            for path in listing.files
        )
        problems = hub.pointers(self._repo, found.commit, files, events=events, say=say, patience=patience)
        if problems:
            raise Refused(list(problems))
        return Listed(files=files, ignored=listing.ignored, commit=found.commit)

    @contextmanager
    def reading(self, file: SourceFile) -> Iterator[Path]:
        """A download that is deleted when the block ends well; one that was left unfinished goes on later."""
        target = self._incoming / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        hub.fetch_to(
            self._repo,
            self._commit,
            file,
            target,
            events=self._around.paths.events,
            leaving=None,
            say=self._around.say,
            patience=self._around.patience,
        )
        yield target
        target.unlink()
        shutil.rmtree(self._incoming)

    def _check_age(self, made: datetime | None) -> None:
        least = self._source.youngest
        if _COMMIT.fullmatch(self._revision) or not least:
            return
        if made is None:
            self._around.say(
                f"{self.label}: the hub does not say when {self._revision} last changed; accepted"
            )
            return
        hours = (self._around.now() - made).total_seconds() / 3600
        if hours < least:
            raise Refused(
                f"{self.label}: {self._revision} last changed {hours:.1f} hours ago, less than the {least:g} "
                'that "min_age_hours" asks for: an upload may still be going on; wait, or accept it with '
                f'"revision": "{self._commit}" or "min_age_hours": 0'
            )


def place_of(name: str, source: SourceRecipe, around: Surroundings) -> Place:
    """The place of a source."""
    return FolderPlace(source) if source.repo is None else HubPlace(name, source, around)
