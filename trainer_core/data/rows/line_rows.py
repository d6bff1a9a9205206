"""Rows of a data line's published cycles for the training loop.

Reads manifests and shards, never sources, and writes nothing. Row k of a part is the k-th element of its
order: a source and one of its windows in the segment. On opening a cycle the order is computed again and
every shard is hashed, and both are compared with the manifest: a line trains on the tokens that were planned
or refuses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.heldout.validation import load_rows, rows_digests
from trainer_core.data.plan.manifest import Manifest, read_cycle_manifest
from trainer_core.data.plan.row_order import PartOrder
from trainer_core.data.rows.buffers import RowBuffers
from trainer_core.data.rows.cycle_shards import CycleShards
from trainer_core.data.rows.source import (
    Part,
    Position,
    RowBatch,
    RowSource,
    StratumRows,
    ValidationRows,
)
from trainer_core.data.sources import last_written, load_data_line
from trainer_core.data.tokens.shards import TokenArray
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
        self._written = last_written(self._paths.root)
        self._line = load_data_line(self._paths.root)
        self._digest = self._line.digest()
        self._beat = beat
        self._cycles: dict[int, OpenCycle] = {}
        self._buffers = RowBuffers()

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

    def _open(self, cycle: int) -> OpenCycle:
        if cycle not in self._cycles:
            opened = OpenCycle(self._manifest(cycle), self._paths, self._beat, self._buffers)
            while len(self._cycles) >= _KEPT_CYCLES:
                self._cycles.pop(min(self._cycles))
            self._cycles[cycle] = opened
        return self._cycles[cycle]

    def _manifest(self, cycle: int) -> Manifest:
        if (written := last_written(self._paths.root)) != self._written:  # the recipe grew while we train
            self._line, self._written = load_data_line(self._paths.root), written
        return read_cycle_manifest(self._paths, cycle, line=self._line)


class OpenCycle:
    """Order and shards of one cycle, both compared with its manifest."""

    def __init__(
        self, manifest: Manifest, paths: DataPaths, beat: Callable[[], None], buffers: RowBuffers
    ) -> None:
        self._cycle = manifest.cycle
        self._buffers = buffers
        self._orders: list[PartOrder] = []
        for part in range(len(manifest.parts)):
            self._orders.append(manifest.order(part))
            beat()
        self._shards = CycleShards(
            paths.cycle(manifest.cycle),
            manifest.shards(),
            way_out=f"run `nstrain data delete --work {paths.root} --cycle {manifest.cycle}`, then `nstrain "
            "data prepare` with the same arguments: the shards are made again from the sources",
            beat=beat,
        )
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
        ids = self._buffers.take(count, length + 1)
        opened: dict[tuple[int, int], TokenArray] = {}
        for row, (source, start, segment) in enumerate(
            zip(chosen.tolist(), (windows * length).tolist(), segments.tolist(), strict=True)
        ):
            tokens = opened.get((segment, source))
            if tokens is None:
                tokens = opened[segment, source] = self._shards.tokens(segment, order.names[source])
            ids[row] = tokens[start : start + length + 1]
        counts = np.bincount(chosen, minlength=len(order.names)).tolist()
        samples = hashlib.blake2b(f"{self._cycle}.{part}".encode(), digest_size=8)
        samples.update(np.stack([chosen, segments, windows]).astype("<i8").tobytes())
        return RowBatch(
            ids=ids,
            source_rows={name: n for name, n in zip(order.names, counts, strict=True) if n},
            samples=samples.hexdigest(),
        )

    def _segments(self, order: PartOrder, part: int, first: int, count: int) -> NDArray[np.int64]:
        """Segment, counted over the whole cycle, of each row."""
        before = sum(len(self._orders[index].bounds) - 1 for index in range(part))
        rows = np.arange(first, first + count)
        return np.searchsorted(np.array(order.bounds), rows, side="right") - 1 + before
