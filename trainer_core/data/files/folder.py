"""The files of a `folder` source: found on disk in a fixed order, pinned and verified by hash.

Never reads text; which files count is decided by listing.py. A name that is no file (a link to nothing, a
pipe) is refused where it looks like a file of the source, and listed as ignored elsewhere.
Invariant: the list depends on names and contents only, never on the order in which the disk returns names.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trainer_core.data.files.listing import (
    Glob,
    Listing,
    is_hidden,
    nearby,
    no_file,
    sort_out,
    strata_of,
    suffix_of,
)
from trainer_core.data.files.pinned_file import difference, refuse_pointer
from trainer_core.data.files.unchanged import look
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
    found: dict[str, int | None] = {}
    _walk(folder, "", pattern, pattern.start(), (), found)
    unnamed = sorted(ascii(path) for path in found if not _is_text(path))
    if unnamed:
        raise Refused(
            f"{folder}: {len(unnamed)} file names are not UTF-8 ({', '.join(unnamed[:5])}); rename them"
        )
    if not found:
        present: dict[str, int | None] = {}
        everything = Glob("**")
        _walk(folder, "", everything, everything.start(), (), present)
        raise Refused(
            f"{folder}: {glob!r} matches no readable file; {nearby(pattern, filter(_is_text, present))}"
        )
    wrong = sorted(path for path, size in found.items() if size is None and _is_wanted(path, pattern))
    if wrong:
        shown = ", ".join(f"{path} ({no_file(folder / path)})" for path in wrong[:5])
        raise Refused(
            f"{folder}: {len(wrong)} names are no files: {shown}; bring back what they lead to, remove them, "
            'or narrow the "glob"'
        )
    sizes = {path: size or 0 for path, size in found.items()}
    return sort_out(sizes, glob, str(folder), folder=str(folder))


def _walk(
    folder: Path,
    below: str,
    pattern: Glob,
    positions: frozenset[int],
    above: tuple[tuple[int, int], ...],
    found: dict[str, int | None],
) -> None:
    """Collect the sizes of matching files, None of what is no file and no folder.

    Enters no folder that cannot hold a match, and no loop of links. A link that leads nowhere may have led to
    a folder that holds one: it is collected as well.
    """
    try:
        status = os.stat(folder)
        here = (status.st_dev, status.st_ino)
        if here in above:
            return
        with os.scandir(folder) as entries:
            names = list(entries)
    except OSError as error:
        raise Refused(
            f'{folder}: cannot be read ({error.strerror}); make it readable, or narrow the "glob"'
        ) from None
    for entry in names:
        ahead = pattern.step(positions, entry.name)
        if not ahead:
            continue
        path = below + entry.name
        try:
            mode, size = (status := entry.stat()).st_mode, status.st_size
        except OSError:
            found[path] = None
            continue
        if stat.S_ISDIR(mode):
            _walk(folder / entry.name, path + "/", pattern, ahead, (*above, here), found)
        elif pattern.done(ahead):
            found[path] = size if stat.S_ISREG(mode) else None


def _is_wanted(path: str, pattern: Glob) -> bool:
    """Whether a path would be one of the source's files, if it were a file with something in it."""
    return suffix_of(path) is not None and not is_hidden(path) and pattern.matches(path)


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
    if os.path.isfile(path):
        refuse_pointer(path)
    if problem is not None:
        raise Refused(f"{path}: {problem}; put the pinned file back and start again")
    return path


def _pin(folder: Path, path: str, stratum: str) -> SourceFile:
    full = folder / path
    before = look(full)
    try:
        size, digest = os.stat(full).st_size, sha256_file(full)
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(f"{full}: vanished after it was listed; put it back and start again") from None
    except OSError as error:
        raise Refused(
            f"{full}: cannot be read ({error.strerror}); make it readable, or leave it out"
        ) from None
    if look(full).written != before.written:
        raise Refused(f"{full}: changed while it was read; start again when nothing writes to it")
    refuse_pointer(full)
    return SourceFile(path=path, size=size, digest=digest, stratum=stratum)
