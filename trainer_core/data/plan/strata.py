"""How many documents a cycle takes from each stratum of a source: a pure function of counts.

Each stratum follows its exact cumulative share to the nearest document end and carries the difference as an
integer debt, so its error stays below one longest document for ever. Files are used in a seeded order; two
files per stratum stay open so that a cycle never depends on one file's end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer_core.data.plan.state import DocEnds, DocRange, OpenFile, StratumState

LEFT_OPEN = 2
"""Files of a stratum that are used in parts; all other open files are used up whole."""

Counts = Callable[[str], DocEnds | None]
"""Document ends of a tokenized file by its path, or None while it is not tokenized."""


@dataclass(frozen=True, kw_only=True)
class StratumFiles:
    """A stratum as the planner sees it."""

    name: str
    """Name within its source."""
    weight: int
    """Its estimated tokens: its share is weight / sum of the source's weights."""
    files: tuple[str, ...]
    """Paths in the order in which they are opened."""
    estimate: Callable[[str], int]
    """Tokens expected in a file; decides only how many files are fetched at once."""


class Untokenized(Exception):
    """Files must be tokenized before the plan can be made."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(*paths)
        self.paths = tuple(paths)


class UsedUp(Exception):
    """A cycle asks for more tokens than there are; what is short of how many, one sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(*problems)
        self.problems = tuple(problems)


class StratumTake:
    """The documents taken from one stratum for one cycle; grows by `take` and `take_document`."""

    def __init__(self, files: StratumFiles, state: StratumState, counts: Counts, where: str) -> None:
        """`where` names source, stratum and cycle for errors."""
        self.files = files
        self.taken_tokens = 0
        self._counts = counts
        self._where = where
        self._next_file = state.next_file
        self._debt = state.debt
        self._ends: dict[str, DocEnds] = {}
        self._first: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._left: dict[str, int] = {}
        lost = [file.path for file in state.open if not self._add(file.path, file.next_doc)]
        if lost:
            raise Untokenized(lost)

    def take(self, target: int) -> None:
        """Take documents up to the end nearest to `target` tokens."""
        if target <= 0:
            return
        self._open_until(target)
        left = dict(self._left)
        # Largest remainders stay open; among equals the one opened last.
        kept = sorted(left, key=left.__getitem__)[-LEFT_OPEN:]
        for path in left:
            if path not in kept:
                self._take_to(path, len(self._ends[path]))
        rest = target - self.taken_tokens
        pool = sum(left[path] for path in kept)
        for path in kept:
            aim = rest * left[path] // pool if pool else 0
            pool -= left[path]
            rest -= self._take_to(path, self._nearest(path, aim))

    def take_document(self) -> bool:
        """Take one more document, opening a file if need be; False when the stratum has none left."""
        while True:
            for path, doc in self._next.items():
                if doc < len(self._ends[path]):
                    self._take_to(path, doc + 1)
                    return True
            if self._next_file == len(self.files.files):
                return False
            path = self.files.files[self._next_file]
            if not self._add(path, 0):
                raise Untokenized([path])
            self._next_file += 1

    def owed(self, credit: int) -> int:
        """Debt and exact share of `credit` tokens of the source, times the sum of the weights."""
        return self._debt + credit * self.files.weight

    def ranges(self) -> list[DocRange]:
        """What was taken, by file; a file opened without a document is listed with none."""
        return [
            DocRange(
                stratum=self.files.name,
                path=path,
                doc_from=first,
                token_from=0,
                doc_to=self._next[path],
            )
            for path, first in self._first.items()
            if self._next[path] > first or len(self._ends[path]) == 0
        ]

    def state(self, debt: int) -> StratumState:
        """The stratum's state after the cycle."""
        still = [
            OpenFile(path=path, next_doc=doc)
            for path, doc in self._next.items()
            if doc < len(self._ends[path])
        ]
        return StratumState(next_file=self._next_file, open=tuple(still), debt=debt)

    def _add(self, path: str, doc: int) -> bool:
        ends = self._counts(path)
        if ends is None:
            return False
        self._ends[path] = ends
        self._first[path] = self._next[path] = doc
        self._left[path] = _position(ends, len(ends)) - _position(ends, doc)
        return True

    def _open_until(self, target: int) -> None:
        """Open files until they hold `target` tokens; asks for untokenized ones by their estimates."""
        left = sum(self._left.values())
        missing: list[str] = []
        last = self._next_file
        while left < target:
            if last == len(self.files.files):
                break
            path = self.files.files[last]
            ends = self._counts(path)
            if ends is None:
                missing.append(path)
                left += max(1, self.files.estimate(path))
            else:
                left += _position(ends, len(ends))
            last += 1
        if missing:
            raise Untokenized(missing)
        if left < target:
            raise UsedUp([f"{self._where}: used up, {target - left:,} tokens short"])
        for path in self.files.files[self._next_file : last]:
            self._add(path, 0)
        self._next_file = last

    def _nearest(self, path: str, aim: int) -> int:
        """The document end nearest to `aim` tokens after the file's position; the earlier one of two."""
        ends, doc = self._ends[path], self._next[path]
        return nearest_end(ends, doc, _position(ends, doc) + aim)

    def _take_to(self, path: str, doc: int) -> int:
        ends = self._ends[path]
        tokens = _position(ends, doc) - _position(ends, self._next[path])
        self._next[path] = doc
        self._left[path] -= tokens
        self.taken_tokens += tokens
        return tokens


def _position(ends: DocEnds, doc: int) -> int:
    return int(ends[doc - 1]) if doc else 0


def nearest_end(ends: DocEnds, doc_from: int, position: int) -> int:
    """Number of documents whose end lies nearest to `position`, at least `doc_from`; the fewer of two."""
    upper = int(ends.searchsorted(position))
    if upper >= len(ends):
        return max(doc_from, len(ends))
    if upper < doc_from:
        return doc_from
    below, above = _position(ends, upper), int(ends[upper])
    return max(doc_from, upper if position - below <= above - position else upper + 1)
