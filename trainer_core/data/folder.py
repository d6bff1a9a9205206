"""The files of a `folder` source: listed in a fixed order, sorted into strata, pinned and verified by hash.

Never reads text. A file is taken if the pattern matches it, a reader knows its suffix, and no part of its
path begins with "." or "_" (markers such as _SUCCESS, caches); other matches are reported as ignored.
Invariant: the list depends on names and contents only, never on the order in which the disk returns names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trainer_core.data.sources import SourceFile, StratumRule
from trainer_core.errors import Refused
from trainer_core.line.files import sha256_file

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt")
WHOLE_SOURCE = "all"


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a pattern matches in a folder; paths are relative, sorted, with forward slashes."""

    files: tuple[str, ...]
    """Files a reader can read."""
    ignored: tuple[str, ...]
    """Other matches."""


def suffix_of(path: str | Path) -> str | None:
    """The known suffix of a file name, or None."""
    name = Path(path).name.lower()
    return next((suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(suffix)), None)


def list_folder(folder: Path, glob: str) -> Listing:
    """The files of a folder that a pattern matches. Raises Refused when none can be read."""
    if not folder.is_dir():
        raise Refused(f"{folder}: this folder does not exist")
    try:
        found = {path.relative_to(folder).as_posix() for path in folder.glob(glob) if path.is_file()}
    except (ValueError, NotImplementedError, LookupError) as error:
        raise Refused(
            f'{folder}: glob {glob!r} is no pattern ({error}); expected one such as "**/*.parquet"'
        ) from None
    unnamed = sorted(ascii(path) for path in found if not _is_text(path))
    if unnamed:
        raise Refused(
            f"{folder}: {len(unnamed)} file names are not UTF-8 ({', '.join(unnamed[:5])}); rename them"
        )
    files: list[str] = []
    ignored: list[str] = []
    for path in sorted(found):
        hidden = any(part.startswith((".", "_")) for part in path.split("/"))
        (ignored if hidden or suffix_of(path) is None else files).append(path)
    if not files:
        raise Refused(
            f"{folder}: {glob!r} matches no readable file ({len(ignored)} ignored: {ignored[:5]}); "
            f"readable are {', '.join(SUFFIXES)}"
        )
    return Listing(files=tuple(files), ignored=tuple(ignored))


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def stratum_of(path: str, rule: StratumRule) -> str:
    """The stratum of a file. Raises Refused when the path has fewer directories than the rule needs."""
    if rule == "none":
        return WHOLE_SOURCE
    if rule == "file":
        return path
    directories = path.split("/")[:-1]
    if len(directories) < rule:
        raise Refused(
            f"{path}: lies {len(directories)} directories deep, the stratum rule names level {rule}; "
            'narrow the "glob" or lower the level'
        )
    return directories[rule - 1]


def pin_files(folder: Path, paths: tuple[str, ...], rule: StratumRule) -> tuple[SourceFile, ...]:
    """Hash every file. Raises Refused with every path that has no stratum or changed while it was read."""
    problems: list[str] = []
    pinned: list[SourceFile] = []
    for path in paths:
        try:
            stratum = stratum_of(path, rule)
            pinned.append(_pin(folder, path, stratum))
        except Refused as error:
            problems += error.problems
    if problems:
        raise Refused(problems)
    return tuple(pinned)


def verify_file(folder: Path, file: SourceFile) -> Path:
    """The path of a pinned file, after comparing size and hash. Raises Refused when it is not that file."""
    path = folder / file.path
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        raise Refused(f"{path}: this pinned file is gone; put it back and start again") from None
    if size != file.size:
        raise Refused(f"{path}: has {size} bytes, {file.size} were pinned; put the pinned file back")
    found = sha256_file(path)
    if found != file.digest:
        raise Refused(f"{path}: sha256 is {found}, {file.digest} was pinned; put the pinned file back")
    return path


def _pin(folder: Path, path: str, stratum: str) -> SourceFile:
    full = folder / path
    before = os.stat(full)
    digest = sha256_file(full)
    after = os.stat(full)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise Refused(f"{full}: changed while it was read; start again when nothing writes to it")
    return SourceFile(path=path, size=after.st_size, digest=digest, stratum=stratum)
