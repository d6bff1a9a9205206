"""Text that a line would read twice: of a file that two sources read, or that one source has under two names.

Each source decides by its own key what it holds out, so one would train on the text that the other validates
with. A file is known by where it lies on the disk, whatever links lead to it, and its text by the place in it
that is read; how texts are joined makes no other text of them. Two columns of one file are no overlap. Looks
at the names of files and never opens one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trainer_core.data.files.listing import suffix_of
from trainer_core.data.sources import SourceFile, SourceSpec

_SHOWN = 3

_File = tuple[object, ...]
"""What all names of one file share."""
_Spot = tuple[str | None, str | None] | None
"""Column and field that are read; None for a whole file."""
_Readers = dict[_File, dict[_Spot, tuple[str, str]]]
"""Source and path that read a spot of a file first."""


def overlaps(known: Iterable[SourceSpec], new: Iterable[SourceSpec]) -> list[str]:
    """What new sources read that another one, or they themselves, read as well; one problem for each pair."""
    readers: _Readers = {}
    for spec in known:
        for file in spec.files:
            _add(readers, spec, file)
    problems = []
    for spec in new:
        shared: dict[str, list[str]] = {}
        for file in spec.files:
            for owner, path in _add(readers, spec, file).items():
                shared.setdefault(owner, []).append(
                    f"{path} is {file.path}" if owner == spec.name else _shown(spec, file)
                )
        problems += [_problem(spec.name, owner, paths) for owner, paths in shared.items()]
    return problems


def _add(readers: _Readers, spec: SourceSpec, file: SourceFile) -> dict[str, str]:
    """Note what a source reads; the sources that read the same text already, each with its path."""
    spots, spot = readers.setdefault(_file(spec, file), {}), _spot(spec, file)
    same = dict(owner for known, owner in spots.items() if known == spot or None in (known, spot))
    spots.setdefault(spot, (spec.name, file.path))
    return same


def _file(spec: SourceSpec, file: SourceFile) -> _File:
    """A repository's file is known by its path, a folder's by what it is on the disk."""
    if spec.folder is None:
        return ("hub", spec.repo, file.path)
    path = os.path.join(spec.folder, file.path)
    try:
        status = os.stat(path)
    except OSError:
        return ("folder", os.path.realpath(path))
    # With the digest, because some network file systems number two files alike.
    return ("folder", status.st_dev, status.st_ino, file.digest)


def _spot(spec: SourceSpec, file: SourceFile) -> _Spot:
    if suffix_of(file.path) == ".txt":
        return None
    return spec.text.column, "content" if spec.text.kind == "messages" else spec.text.field


def _shown(spec: SourceSpec, file: SourceFile) -> str:
    return file.path if spec.folder is None else str(Path(spec.folder) / file.path)


def _problem(name: str, owner: str, paths: list[str]) -> str:
    shown = ", ".join(paths[:_SHOWN])
    if name == owner:
        return (
            f"source {name!r}: {len(paths)} of its files are there under two names ({shown}), and their text "
            'would be trained twice; remove the links, or narrow the "glob"'
        )
    return (
        f"source {name!r}: {len(paths)} of its files are those of source {owner!r} ({shown}), whose text "
        'would be trained twice and held out by two keys; narrow one "glob"'
    )
