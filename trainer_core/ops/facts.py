"""Reads what a line's directories say about its cycles, for `trainer_core.line.cycles.next_actions`.

Asked every second or so for weeks, so it reads no data.json, and a manifest or a log only once after it has
changed. Whether a manifest belongs to its data line is asked by those who plan or train with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from trainer_core.data.plan.manifest import read_manifest
from trainer_core.line.checkpoints import newest
from trainer_core.line.config import load_run
from trainer_core.line.cycles import LineFacts, token_span
from trainer_core.line.files import iterate_jsonl, stamp
from trainer_core.line.paths import DataPaths, LinePaths

NOTHING_TO_DO = "everything asked for is trained already; nothing was changed"
"""What a start answers when `next_actions` has nothing for the facts."""

_KEPT = 64
"""Files whose values are remembered."""

T = TypeVar("T")


class _Remembered(Generic[T]):
    """Values made from files, made again when the files have changed."""

    def __init__(self, make: Callable[[Path], T]) -> None:
        self._make = make
        self._values: dict[Path, tuple[object, T]] = {}

    def __call__(self, path: Path, seen: object) -> T:
        """The value of `path`, whose present stamp is `seen`."""
        known = self._values.get(path)
        if known is None or known[0] != seen:
            known = (seen, self._make(path))
            self._values.pop(path, None)
            while len(self._values) >= _KEPT:
                self._values.pop(next(iter(self._values)), None)
            self._values[path] = known
        return known[1]


@dataclass(frozen=True, kw_only=True)
class _Planned:
    """What the facts need of a manifest."""

    end: int
    """Tokens trained by the line at its end."""
    complete: bool
    """Whether every shard was in place when this was looked at."""


def _planned(path: Path) -> _Planned:
    manifest = read_manifest(path)
    folder = DataPaths(path.parents[1]).cycle(manifest.cycle)
    shards = (shard["path"] for records in manifest.shards() for shard in records)
    return _Planned(
        end=token_span(manifest.parts)[1], complete=all((folder / shard).exists() for shard in shards)
    )


def _downloaded(path: Path) -> frozenset[int]:
    rows = iterate_jsonl(path)
    return frozenset(int(row["cycle"]) for row in rows if row.get("kind") == "downloaded")


_MANIFESTS = _Remembered(_planned)
_DOWNLOADED = _Remembered(_downloaded)


def read_facts(line: Path, target: int | None, *, ahead: int = 1) -> LineFacts:
    """The facts of a line now; cheap enough to be read every second."""
    paths = LinePaths(line)
    config = load_run(paths)
    data = DataPaths(Path(config.data))
    checkpoint = newest(paths)
    current = checkpoint.cycle if checkpoint else 0
    names = [path.name for path in data.cycles.iterdir()] if data.cycles.is_dir() else []
    here = {int(name): _look(data, int(name)) for name in names if name.isdigit()}
    return LineFacts(
        current=current,
        target=target,
        end_tokens=config.end_tokens,
        tokens=checkpoint.tokens if checkpoint else 0,
        published=frozenset(
            cycle for cycle, planned in here.items() if planned is not None and planned.complete
        ),
        half_deleted=frozenset(
            int(n.removesuffix(".deleted")) for n in names if n.endswith(".deleted") and n[:6].isdigit()
        ),
        downloaded=_DOWNLOADED(data.cycles_log, stamp(data.cycles_log)),
        ends={
            cycle: planned.end
            for cycle in range(current, current + ahead + 1)
            if (planned := _look(data, cycle)) is not None
        },
        ahead=ahead,
        keep_cycles=config.data_keep_cycles,
    )


def _look(data: DataPaths, cycle: int) -> _Planned | None:
    """What is planned for a cycle and whether it is there; None before it has a manifest.

    A shard that goes changes its segment's folder, and a segment that goes the cycle's.
    """
    path, folder = data.manifest(cycle), data.cycle(cycle)
    manifest = stamp(path)
    if manifest is None:
        return None
    segments = sorted(folder.iterdir()) if folder.is_dir() else []
    return _MANIFESTS(path, (manifest, stamp(folder), *map(stamp, segments)))
