"""Which paths of a folder or repository are a source's files: one pattern matcher and one rule for both.

A path is listed if the pattern matches it. Of the listed ones a file is taken if a reader knows its suffix,
it is not empty, and no part of its path begins with "." or "_" (markers such as _SUCCESS, caches); the others
are ignored, and `why_ignored` says why. Never opens a file.
Invariant: which files are taken depends on names and sizes only, never on the order in which they come.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import translate
from pathlib import Path

from trainer_core.data.sources import StratumRule
from trainer_core.errors import Refused

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt")
WHOLE_SOURCE = "all"
LONGEST_NAME = 200
"""Bytes of a file's name: the names of what is made of it are longer, and file systems end at 255."""
TOKENS_SUFFIX, HASHES_SUFFIX = ".safetensors", ".u64"
"""What is made of a file is named like it, with one of these behind it."""
_SHOWN = 8
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def suffix_of(path: str | Path) -> str | None:
    """The known suffix of a file name, or None."""
    name = Path(path).name.lower()
    return next((suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(suffix)), None)


def why_ignored(path: str, folder: str | None = None) -> str:
    """Why a listed path is no file of its source, in a folder that lies here if it is one."""
    if is_hidden(path):
        return "hidden: a part of its name begins with . or _"
    if folder is not None and (kind := no_file(Path(folder) / path)) is not None:
        return kind
    return "empty" if suffix_of(path) else "no reader for this ending"


def no_file(path: Path) -> str | None:
    """What a name stands for when it is no file, in words; None when it is one."""
    try:
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (FileNotFoundError, NotADirectoryError):
        return "a link to nothing"
    except OSError:
        return "a link that cannot be followed"


class Glob:
    """A pattern of relative paths: `*`, `?` and `[...]` within a part, `**` for any number of folders."""

    def __init__(self, pattern: str) -> None:
        """Raises ValueError when it is no pattern."""
        self.pattern = pattern
        self.parts = pattern.split("/")
        if not pattern or any("**" in part and part != "**" for part in self.parts):
            raise ValueError('"**" must be a whole part')
        self._parts = [None if part == "**" else re.compile(translate(part)) for part in self.parts]

    def start(self) -> frozenset[int]:
        """Positions in the pattern before the first part of a path."""
        return self._closed({0})

    def step(self, positions: frozenset[int], name: str) -> frozenset[int]:
        """Positions after one more part of a path; empty when no path through it matches."""
        found = set()
        for position in positions:
            if position == len(self._parts):
                continue
            pattern = self._parts[position]
            if pattern is None:
                found.add(position)
            elif pattern.match(name):
                found.add(position + 1)
        return self._closed(found)

    def done(self, positions: frozenset[int]) -> bool:
        """Whether the path so far matches."""
        return len(self._parts) in positions

    def matches(self, path: str) -> bool:
        """Whether a path matches."""
        positions = self.start()
        for name in path.split("/"):
            positions = self.step(positions, name)
        return self.done(positions)

    def _closed(self, positions: set[int]) -> frozenset[int]:
        """With those that "**" reaches by standing for nothing."""
        for position in sorted(positions):
            while position < len(self._parts) and self._parts[position] is None:
                position += 1
                positions.add(position)
        return frozenset(positions)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a pattern matches; paths are relative, sorted, with forward slashes."""

    files: tuple[str, ...]
    """Files a reader can read."""
    ignored: tuple[str, ...]
    """Other matches."""


def sort_out(sizes: Mapping[str, int], pattern: str, where: str, *, folder: str | None = None) -> Listing:
    """Files and ignored ones among the listed paths, which lie in `folder` if they lie here.

    Raises Refused when there is no file, or the names of files leave no room for what is made of them.
    """
    ignored = [path for path in sizes if not sizes[path] or suffix_of(path) is None or is_hidden(path)]
    files = sorted(set(sizes).difference(ignored))
    if not files:
        why = reasons(ignored, folder) or "it matches nothing"
        raise Refused(
            f"{where}: {pattern!r} matches no readable file ({why}); readable are {', '.join(SUFFIXES)}"
        )
    long = [path for path in files if len(path.rpartition("/")[2].encode("utf-8")) > LONGEST_NAME]
    if long:
        raise Refused(
            f"{where}: {len(long)} file names are longer than {LONGEST_NAME} bytes ({long[0]}), too long for "
            'the files made of them; rename them, or narrow the "glob"'
        )
    if pairs := _colliding(files):
        shown = ", ".join(f"{first} and {second}" for first, second in pairs[:_SHOWN])
        raise Refused(
            f"{where}: {len(pairs)} pair{'s' * (len(pairs) > 1)} of files whose tokens or hashes would take "
            f'each other\'s place ({shown}); rename the folders, or narrow the "glob"'
        )
    return Listing(files=tuple(files), ignored=tuple(sorted(ignored)))


def _colliding(files: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of files of which the first one's output would stand where the second one's folder must."""
    made = {path + suffix: path for path in files for suffix in (TOKENS_SUFFIX, HASHES_SUFFIX)}
    found = []
    for path in files:
        parts = path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        found += [(made[folder], path) for folder in above if folder in made]
    return found


def reasons(ignored: Iterable[str], folder: str | None = None) -> str:
    """Ignored paths by reason, for messages; `folder` as in `why_ignored`."""
    by_reason: dict[str, list[str]] = {}
    for path in sorted(ignored):
        by_reason.setdefault(why_ignored(path, folder), []).append(path)
    return "; ".join(
        f"{len(paths)} ignored ({reason}): {', '.join(paths[:_SHOWN])}"
        + (" ..." if len(paths) > _SHOWN else "")
        for reason, paths in by_reason.items()
    )


def nearby(glob: Glob, paths: Iterable[str]) -> str:
    """What a pattern that matches nothing may have meant: the names beside its first missing part."""
    positions = [(glob.start(), path.split("/")) for path in paths]
    for depth in range(len(glob.parts)):
        ahead = [(glob.step(found, parts[depth]), parts) for found, parts in positions if depth < len(parts)]
        reached = [(found, parts) for found, parts in ahead if found]
        if not reached:
            names = sorted({parts[depth] + "/" * (depth + 1 < len(parts)) for _, parts in ahead})
            wanted = glob.parts[depth]
            names.sort(key=lambda name: (name[: len(wanted)] != wanted, -_likeness(name, wanted)))
            folder = "/".join(ahead[0][1][:depth]) if ahead and depth else ""
            shown = ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
            where = folder or "its top folder"
            return f"{wanted!r} is not in {where}: there are {shown or 'no files'}"
        positions = reached
    return "there are no files below it"


def _likeness(name: str, other: str) -> float:
    return SequenceMatcher(None, name, other).ratio()


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


def strata_of(paths: Iterable[str], rule: StratumRule) -> dict[str, str]:
    """Stratum by path. Raises Refused with every path that has none."""
    problems: list[str] = []
    found: dict[str, str] = {}
    for path in paths:
        try:
            found[path] = stratum_of(path, rule)
        except Refused as error:
            problems += error.problems
    if problems:
        raise Refused(problems)
    return found


def is_hidden(path: str) -> bool:
    """Whether a part of a path's name begins with . or _."""
    return any(part.startswith((".", "_")) for part in path.split("/"))
