"""A hub of data sets: which commit a revision stands for, which files it has, and their bytes.

The endpoint (HF_ENDPOINT) and the token (HF_TOKEN) are read at each call. Everything that can pass is waited
for, everything else is refused at once with its way out. Invariant: what `fetch_to` leaves at its target has
the pinned size and digest, whatever the hub did, and no other commit is ever asked than the pinned one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

from trainer_core.data.files.pinned_file import PinnedFile
from trainer_core.data.hub.requests import Hub
from trainer_core.data.hub.transfer import Transfer
from trainer_core.data.hub.waiting import Patience, Say, Wait, say_nothing
from trainer_core.errors import Refused

_PATIENCE = Patience()
_POINTER_BYTES = range(100, 300)


@dataclass(frozen=True, kw_only=True)
class HubCommit:
    """What a revision of a repository stood for when it was asked."""

    repo: str
    """Data set, `owner/name`."""
    revision: str
    """Branch, tag or commit that was asked for."""
    commit: str
    """Forty hex digits."""
    last_modified: datetime | None
    """When that commit was made; None when the hub does not say."""


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file of a commit, as the hub lists it."""

    path: str
    """Within the repository, with forward slashes."""
    size: int
    """Bytes."""
    digest: str
    """Hex sha256 where the hub keeps the file by it, else git's blob sha1."""


def resolve(
    repo: str,
    revision: str,
    *,
    events: Path | None = None,
    leaving: Event | None = None,
    say: Say = say_nothing,
    patience: Patience = _PATIENCE,
) -> HubCommit:
    """The commit of a revision. Raises Refused when there is none, or it may not be read."""
    with Wait(repo, patience=patience, events=events, leaving=leaving, say=say) as wait:
        request = {"operation": "revision", "revision": revision}
        found = Hub(repo, wait, patience).ask_until_done(request, revision=revision)
    made = found["last_modified"]
    return HubCommit(
        repo=repo,
        revision=revision,
        commit=found["commit"],
        last_modified=datetime.fromisoformat(made) if made else None,
    )


def list_files(
    repo: str,
    commit: str,
    *,
    events: Path | None = None,
    leaving: Event | None = None,
    say: Say = say_nothing,
    patience: Patience = _PATIENCE,
) -> tuple[HubFile, ...]:
    """All files of a commit, sorted by path. Raises Refused naming paths that lead out of a folder."""
    files: list[HubFile] = []
    with Wait(repo, patience=patience, events=events, leaving=leaving, say=say) as wait:
        hub = Hub(repo, wait, patience)
        request: dict[str, Any] = {"operation": "page", "commit": commit}
        while True:
            page = hub.ask_until_done(request, revision=commit, pinned=True)
            files += [HubFile(path=path, size=size, digest=digest) for path, size, digest in page["files"]]
            if page["next"] is None:
                break
            request["url"] = page["next"]
    unsafe = [file.path for file in files if {"", ".", ".."} & set(file.path.split("/"))]
    if unsafe:
        raise Refused([f"{repo}: {path!r} is no path inside a repository" for path in unsafe])
    return tuple(sorted(files, key=lambda file: file.path))


def fetch_to(
    repo: str,
    commit: str,
    file: PinnedFile,
    target: Path,
    *,
    events: Path | None = None,
    leaving: Event | None = None,
    say: Say = say_nothing,
    patience: Patience = _PATIENCE,
    again: bool = False,
) -> None:
    """Let `target` be a file of a commit; one that is here already, and is the pinned one, is kept.

    `again`: what is here could not be read, so it is fetched anew. Raises Refused when it cannot be had or is
    no data, DiskFull when there is no room for it, Leaving when the process is asked to end meanwhile.
    """
    what = f"{repo}: {file.path}"
    with Wait(what, patience=patience, events=events, leaving=leaving, say=say) as wait:
        Transfer(repo, commit, file, target, wait=wait, say=say, patience=patience).run(again=again)


def pointers(
    repo: str,
    commit: str,
    files: Sequence[PinnedFile],
    *,
    events: Path | None = None,
    leaving: Event | None = None,
    say: Say = say_nothing,
    patience: Patience = _PATIENCE,
) -> tuple[str, ...]:
    """Problems: those of the files that are Git LFS pointers, uploaded in place of their data.

    Only files that have a pointer's size are looked into.
    """
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(files):
            if file.size not in _POINTER_BYTES:
                continue
            try:
                target = Path(folder) / str(number)
                fetch_to(
                    repo, commit, file, target, events=events, leaving=leaving, say=say, patience=patience
                )
            except Refused as refused:
                problems += refused.problems
    return tuple(problems)
