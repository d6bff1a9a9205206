"""Rows of a data line's published cycles for the training loop.

Reads manifests and shards, never sources, and writes nothing. Row k of a part is the k-th element of its
order: a source and one of its windows in the segment. The order is computed again on opening a cycle and
compared with the manifest, so a continued line sees the rows that were planned or refuses.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainer_core.data.manifest import Manifest, read_manifest
from trainer_core.data.row_order import PartOrder
from trainer_core.data.row_source import Part, Position, RowBatch, RowSource, StratumRows, ValidationRows
from trainer_core.data.shards import TokenArray, read_shard
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

    def __init__(self, data_root: Path) -> None:
        """Read the line's record; cycles are opened when they are asked for."""
        self._paths = DataPaths(Path(data_root))
        self._line = load_data_line(self._paths.root)
        self._cycles: dict[int, _OpenCycle] = {}

    def ready(self, cycle: int) -> bool:
        """Whether the cycle is published and its shards are here."""
        if cycle in self._cycles:
            return True
        path = self._paths.manifest(cycle)
        if not path.exists():
            return False
        folder = self._paths.cycle(cycle)
        records = read_manifest(path).shards()
        return all((folder / record["path"]).exists() for shards in records for record in shards)

    def parts(self, cycle: int) -> tuple[Part, ...]:
        """The parts of a ready cycle. Raises Refused when the order is not the recorded one."""
        return self._open(cycle).parts

    def rows(self, position: Position, count: int) -> RowBatch:
        """`count` rows of one part from a position on."""
        return self._open(position.cycle).rows(position.part, position.row, count)

    def validation(self, row_length: int) -> ValidationRows:
        """The pinned held-out rows of a length."""
        return load_rows(self._paths.root, row_length)

    def identity(self) -> dict[str, Any]:
        """Digests of the data line and of its held-out rows by length; places on disk do not count."""
        return {"data_digest": self._line.digest(), "heldout": rows_digests(self._paths.root)}

    def close(self) -> None:
        """Forget all open cycles."""
        self._cycles.clear()

    def _open(self, cycle: int) -> _OpenCycle:
        if cycle not in self._cycles:
            opened = _OpenCycle(read_manifest(self._paths.manifest(cycle)), self._paths.cycle(cycle))
            while len(self._cycles) >= _KEPT_CYCLES:
                self._cycles.pop(min(self._cycles))
            self._cycles[cycle] = opened
        return self._cycles[cycle]


class _OpenCycle:
    """Order and memory maps of one cycle."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self._manifest = manifest
        self._folder = folder
        self._orders = [manifest.order(part) for part in range(len(manifest.parts))]
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

    @cached_property
    def _tokens(self) -> list[dict[str, TokenArray]]:
        """Memory maps by segment and source. Raises Refused when a shard has another size than recorded."""
        opened: list[dict[str, TokenArray]] = []
        for records in self._manifest.shards():
            segment = {}
            for record in records:
                path = self._folder / record["path"]
                tokens = read_shard(path).tokens
                if len(tokens) != record["tokens"]:
                    raise Refused(
                        f"{path}: holds {len(tokens)} tokens, its manifest says {record['tokens']}; "
                        f"delete {self._folder} and prepare the cycle again"
                    )
                segment[record["source"]] = tokens
            opened.append(segment)
        return opened
