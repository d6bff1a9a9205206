"""Rows of a data line's published cycles for the training loop.

Reads manifests and shards, never sources, and writes nothing. Row k of a part is the k-th element of its
order: a source and one of its windows in the segment. On opening a cycle the order is computed again and
every shard is hashed, and both are compared with the manifest: a line trains on the tokens that were planned
or refuses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer_core.data.manifest import Manifest, read_cycle_manifest
from trainer_core.data.row_order import PartOrder
from trainer_core.data.row_source import Part, Position, RowBatch, RowSource, StratumRows, ValidationRows
from trainer_core.data.shards import TokenArray, hash_shard, read_shard
from trainer_core.data.sources import load_data_line
from trainer_core.data.validation import load_rows, rows_digests
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

__all__ = [
    "DataLineRows",
    "Part",
    "Position",
    "RowBatch",
    "RowSource",
    "StratumRows",
    "ValidationRows",
]

_KEPT_CYCLES = 2


class DataLineRows:
    """The rows of one data line."""

    def __init__(self, data_root: Path, *, beat: Callable[[], None] = lambda: None) -> None:
        """Read the line's record; cycles are opened when they are asked for.

        Opening a cycle reads all of it, which takes minutes when it is large: `beat` is called all along.
        """
        self._paths = DataPaths(Path(data_root))
        self._line = load_data_line(self._paths.root)
        self._digest = self._line.digest()
        self._beat = beat
        self._cycles: dict[int, _OpenCycle] = {}

    def ready(self, cycle: int) -> bool:
        """Whether the cycle is published and its shards are here."""
        if cycle in self._cycles:
            return True
        path = self._paths.manifest(cycle)
        if not path.exists():
            return False
        folder = self._paths.cycle(cycle)
        records = self._manifest(cycle).shards()
        return all((folder / record["path"]).exists() for shards in records for record in shards)

    def parts(self, cycle: int) -> tuple[Part, ...]:
        """The parts of a ready cycle. Raises Refused when order or shards are not the recorded ones."""
        return self._open(cycle).parts

    def rows(self, position: Position, count: int) -> RowBatch:
        """`count` rows of one part from a position on."""
        return self._open(position.cycle).rows(position.part, position.row, count)

    def validation(self, row_length: int, cycle: int) -> ValidationRows:
        """The pinned held-out rows of a length, weighted by the recipe in force at a cycle."""
        return load_rows(self._paths.root, row_length, cycle)

    def identity(self) -> dict[str, Any]:
        """Digests of the data line and of its held-out rows by length; places on disk do not count."""
        return {"data_digest": self._digest, "heldout": rows_digests(self._paths.root)}

    def close(self) -> None:
        """Forget all open cycles."""
        self._cycles.clear()

    def _open(self, cycle: int) -> _OpenCycle:
        if cycle not in self._cycles:
            opened = _OpenCycle(self._manifest(cycle), self._paths, self._beat)
            while len(self._cycles) >= _KEPT_CYCLES:
                self._cycles.pop(min(self._cycles))
            self._cycles[cycle] = opened
        return self._cycles[cycle]

    def _manifest(self, cycle: int) -> Manifest:
        return read_cycle_manifest(self._paths, cycle, line=self._line)


class _OpenCycle:
    """Order and memory maps of one cycle, both compared with its manifest."""

    def __init__(self, manifest: Manifest, paths: DataPaths, beat: Callable[[], None]) -> None:
        self._manifest = manifest
        self._folder = paths.cycle(manifest.cycle)
        self._way_out = (
            f"run `nstrain data delete --work {paths.root} --cycle {manifest.cycle}`, then `nstrain data "
            "prepare` with the same arguments: the shards are made again from the sources"
        )
        self._orders = []
        for part in range(len(manifest.parts)):
            self._orders.append(manifest.order(part))
            beat()
        self._tokens = self._open_shards(beat)
        self.parts = tuple(
            Part(
                row_length=record["row_length"],
                num_rows=record["num_rows"],
                updates=record["updates"],
                start_token=record["start_token"],
                order_digest=record["order_digest"],
                manifest_sha256=manifest.sha256,
            )
            for record in manifest.parts
        )

    def rows(self, part: int, first: int, count: int) -> RowBatch:
        """Rows first .. first+count-1 of a part."""
        length, order = self.parts[part].row_length, self._orders[part]
        assert first >= 0 and count > 0 and first + count <= self.parts[part].num_rows, (part, first, count)
        chosen = order.sequence[first : first + count]
        windows = order.windows[first : first + count]
        segments = self._segments(order, part, first, count)
        ids = np.empty((count, length + 1), dtype=np.int64)
        for row, (source, window, segment) in enumerate(
            zip(chosen.tolist(), windows.tolist(), segments.tolist(), strict=True)
        ):
            tokens = self._tokens[segment][order.names[source]]
            ids[row] = tokens[window * length : (window + 1) * length + 1]
        counts = np.bincount(chosen, minlength=len(order.names)).tolist()
        samples = hashlib.blake2b(f"{self._manifest.cycle}.{part}".encode(), digest_size=8)
        samples.update(np.stack([chosen, segments, windows]).astype("<i8").tobytes())
        return RowBatch(
            ids=ids,
            source_rows={name: n for name, n in zip(order.names, counts, strict=True) if n},
            samples=samples.hexdigest(),
        )

    def _segments(self, order: PartOrder, part: int, first: int, count: int) -> np.ndarray:
        """Segment, counted over the whole cycle, of each row."""
        before = sum(len(self._orders[index].bounds) - 1 for index in range(part))
        rows = np.arange(first, first + count)
        return np.searchsorted(np.array(order.bounds), rows, side="right") - 1 + before

    def _open_shards(self, beat: Callable[[], None]) -> list[dict[str, TokenArray]]:
        """Memory maps by segment and source. Raises Refused naming every shard that is not as recorded."""
        opened: list[dict[str, TokenArray]] = []
        damaged: list[str] = []
        for records in self._manifest.shards():
            segment = {}
            for record in records:
                try:
                    segment[record["source"]] = self._open_shard(record, beat)
                except Refused as error:
                    damaged += error.problems
            opened.append(segment)
        if damaged:
            raise Refused(damaged)
        return opened

    def _open_shard(self, record: Mapping[str, Any], beat: Callable[[], None]) -> TokenArray:
        path = self._folder / record["path"]
        tokens = read_shard(path, way_out=self._way_out).tokens
        found = hash_shard(path, beat=beat)
        if found != record["blake2b"]:
            raise Refused(
                f"{path}: damaged: blake2b is {found}, its manifest says {record['blake2b']}; {self._way_out}"
            )
        if len(tokens) != record["tokens"]:
            raise Refused(
                f"{path}: holds {len(tokens)} tokens as recorded by its digest, its manifest says "
                f"{record['tokens']}; restore the manifest from a backup"
            )
        return tokens
