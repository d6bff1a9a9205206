"""The files of a `folder` source: found on disk in a fixed order, pinned and verified by hash.

Never reads text; which files count is decided by listing.py.
Invariant: the list depends on names and contents only, never on the order in which the disk returns names.
"""

from __future__ import annotations

import os
from pathlib import Path

from trainer_core.data.files.listing import Glob, Listing, nearby, sort_out, strata_of
from trainer_core.data.files.pinned_file import difference, refuse_pointer
from trainer_core.data.sources import SourceFile, StratumRule
from trainer_core.errors import Refused
from trainer_core.line.files import sha256_file


def list_folder(folder: Path, glob: str) -> Listing:
    """The files of a folder that a pattern matches. Raises Refused when none can be read."""
    if not folder.is_dir():
        raise Refused(f"{folder}: this folder does not exist")
    try:
        pattern = Glob(glob)
    except ValueError as error:
        raise Refused(
            f'{folder}: glob {glob!r} is no pattern ({error}); expected one such as "**/*.parquet"'
        ) from None
    found: dict[str, int] = {}
    _walk(folder, "", pattern, pattern.start(), (), found)
    unnamed = sorted(ascii(path) for path in found if not _is_text(path))
    if unnamed:
        raise Refused(
            f"{folder}: {len(unnamed)} file names are not UTF-8 ({', '.join(unnamed[:5])}); rename them"
        )
    if not found:
        present: dict[str, int] = {}
        everything = Glob("**")
        _walk(folder, "", everything, everything.start(), (), present)
        raise Refused(
            f"{folder}: {glob!r} matches no readable file; {nearby(pattern, filter(_is_text, present))}"
        )
    return sort_out(found, glob, str(folder))


def _walk(
    folder: Path,
    below: str,
    pattern: Glob,
    positions: frozenset[int],
    above: tuple[tuple[int, int], ...],
    found: dict[str, int],
) -> None:
    """Collect the sizes of matching files; enters no folder that cannot hold one, and no loop of links."""
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            ahead = pattern.step(positions, entry.name)
            if not ahead:
                continue
            path = below + entry.name
            if entry.is_dir():
                _walk(folder / entry.name, path + "/", pattern, ahead, (*above, here), found)
            elif pattern.done(ahead) and entry.is_file():
                found[path] = entry.stat().st_size


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def pin_files(folder: Path, paths: tuple[str, ...], rule: StratumRule) -> tuple[SourceFile, ...]:
    """Hash every file. Raises Refused with every path that has no stratum or changed while it was read."""
    strata = strata_of(paths, rule)
    problems: list[str] = []
    pinned: list[SourceFile] = []
    for path in paths:
        try:
            pinned.append(_pin(folder, path, strata[path]))
        except Refused as error:
            problems += error.problems
    if problems:
        raise Refused(problems)
    return tuple(pinned)


def verify_file(folder: Path, file: SourceFile) -> Path:
    """The path of a pinned file, after comparing size and hash. Raises Refused when it is not that file."""
    path = folder / file.path
    problem = difference(path, file)
    if path.exists():
        refuse_pointer(path)
    if problem is not None:
        raise Refused(f"{path}: {problem}; put the pinned file back and start again")
    return path


def _pin(folder: Path, path: str, stratum: str) -> SourceFile:
    full = folder / path
    before = os.stat(full)
    digest = sha256_file(full)
    after = os.stat(full)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise Refused(f"{full}: changed while it was read; start again when nothing writes to it")
    refuse_pointer(full)
    return SourceFile(path=path, size=after.st_size, digest=digest, stratum=stratum)
