"""The shards of a published cycle as its reader sees them: hashed once, mapped while they are read.

Every shard is compared with the manifest when the cycle is opened, and again if its file has changed since.
Only the segments in use are mapped: a large cycle has more shards than a process may map. A file's size is
looked at before each read, because reading a map behind the end of its file kills the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_core.data.tokens.shards import TokenArray, hash_shard, read_shard
from trainer_core.errors import Refused

_MAPPED_SEGMENTS = 4

_Stamp = tuple[int, int, int]


class CycleShards:
    """Tokens of a cycle by segment and source."""

    def __init__(
        self,
        folder: Path,
        records: Sequence[Sequence[Mapping[str, Any]]],
        *,
        way_out: str,
        beat: Callable[[], None],
    ) -> None:
        """Hash every shard, calling `beat` all along. Raises Refused naming all that are not as recorded."""
        self._way_out = way_out
        self._beat = beat
        self._records = [{record["source"]: record for record in segment} for segment in records]
        self._paths = [{r["source"]: str(folder / r["path"]) for r in segment} for segment in records]
        self._stamps: dict[tuple[int, str], _Stamp] = {}
        self._mapped: dict[int, dict[str, TokenArray]] = {}
        damaged: list[str] = []
        for segment, sources in enumerate(self._records):
            for source in sources:
                try:
                    self._stamps[segment, source] = self._checked(segment, source)
                except Refused as error:
                    damaged += error.problems
        if damaged:
            raise Refused(damaged)

    def tokens(self, segment: int, source: str) -> TokenArray:
        """A shard's tokens, for reading at once. Raises Refused when the file is not the recorded one."""
        key = (segment, source)
        path = self._paths[segment][source]
        try:
            stamp = _stamp(path)
        except FileNotFoundError:
            raise Refused(f"{path}: this shard does not exist any more; {self._way_out}") from None
        if stamp != self._stamps[key]:
            self._mapped.get(segment, {}).pop(source, None)
            self._stamps[key] = self._checked(*key)
        if segment not in self._mapped:
            while len(self._mapped) >= _MAPPED_SEGMENTS:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[segment] = {}
        mapped = self._mapped[segment]
        if source not in mapped:
            mapped[source] = read_shard(Path(path), way_out=self._way_out).tokens
        return mapped[source]

    def _checked(self, segment: int, source: str) -> _Stamp:
        """Compare a shard with its record; what its file looked like."""
        path, record = Path(self._paths[segment][source]), self._records[segment][source]
        tokens = read_shard(path, way_out=self._way_out).tokens
        stamp = _stamp(path)
        found = hash_shard(path, beat=self._beat)
        if found != record["blake2b"]:
            raise Refused(
                f"{path}: damaged: blake2b is {found}, its manifest says {record['blake2b']}; {self._way_out}"
            )
        if len(tokens) != record["tokens"]:
            raise Refused(
                f"{path}: holds {len(tokens)} tokens as recorded by its digest, its manifest says "
                f"{record['tokens']}; restore the manifest from a backup"
            )
        return stamp


def _stamp(path: str | Path) -> _Stamp:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns, stat.st_ino
