"""Writes the shards of a cycle from tokenized files: streams in, one file per segment and source out.

Knows neither plans nor manifests, only streams of document ranges and rows per segment, so that publishing a
cycle and rebuilding it from its manifest are the same code. A source's windows in a segment overlap those of
the next by one token, the context of its first row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.plan.state import DocEnds, DocRange
from trainer_core.data.tokens.shards import Shard, TokenArray, TokenType, write_shard
from trainer_core.line.files import fsync_dir

_SLICE = 1 << 20

ReadFile = Callable[[str, str], Shard]
"""The tokenized file of a source and path."""


@dataclass(frozen=True, kw_only=True)
class SegmentRows:
    """What a segment needs of each source."""

    part: int
    """Part of the cycle that it belongs to."""
    row_length: int
    """Targets per row."""
    rows: Mapping[str, int]
    """Rows by source."""


class Stream:
    """The tokens of document ranges, one after the other; files are opened where their tokens are read."""

    def __init__(self, docs: Sequence[DocRange], read: Callable[[str], Shard]) -> None:
        self._read = read
        self._parts: list[tuple[int, DocRange, DocEnds]] = []
        self.num_tokens = 0
        for entry in docs:
            ends = read(entry.path).doc_ends.astype(np.int64)
            self._parts.append((self.num_tokens, entry, ends))
            self.num_tokens += entry.tokens(ends)

    def slices(self, first: int, last: int) -> Iterator[TokenArray]:
        """Tokens first .. last-1 in slices of bounded size."""
        assert 0 <= first <= last <= self.num_tokens, (first, last, self.num_tokens)
        for start, entry, ends in self._parts:
            base = entry.start(ends) - start
            position = max(first, start) + base
            stop = min(last + base, entry.end(ends))
            tokens = self._read(entry.path).tokens if position < stop else None
            while position < stop:
                assert tokens is not None
                size = min(_SLICE, stop - position)
                yield tokens[position : position + size]
                position += size

    def doc_ends(self, first: int, last: int) -> NDArray[np.uint64]:
        """Ends of the documents that end within tokens first .. last-1, counted from `first`."""
        found = [np.empty(0, dtype=np.int64)]
        for start, entry, ends in self._parts:
            base = entry.start(ends) - start
            inside = ends[entry.doc_from : entry.doc_to] - base - first
            found.append(inside[(inside > 0) & (inside <= last - first)])
        return np.concatenate(found).astype(np.uint64)


def shard_path(segment: int, source: str) -> str:
    """Path of a shard within its cycle's folder."""
    return f"seg-{segment:03d}/{source}.safetensors"


def write_segments(
    folder: Path,
    segments: Sequence[SegmentRows],
    streams: Mapping[str, Sequence[DocRange]],
    read: ReadFile,
    token_type: TokenType,
) -> list[list[dict[str, Any]]]:
    """Write and fsync all shards below `folder`, which must be new; their records as in the manifest."""
    opened = {
        name: Stream(docs, lambda path, name=name: read(name, path))  # type: ignore[misc]
        for name, docs in streams.items()
    }
    position = dict.fromkeys(streams, 0)
    records: list[list[dict[str, Any]]] = []
    folder.mkdir(parents=True)
    for index, segment in enumerate(segments):
        shards = []
        (folder / f"seg-{index:03d}").mkdir()
        for name, rows in segment.rows.items():
            first = position[name]
            last = first + rows * segment.row_length
            path = shard_path(index, name)
            digest = write_shard(
                folder / path,
                opened[name].slices(first, last + 1),
                opened[name].doc_ends(first, last + 1),
                num_tokens=last + 1 - first,
                token_type=token_type,
            )
            position[name] = last
            shards.append(
                {
                    "source": name,
                    "path": path,
                    "tokens": last + 1 - first,
                    "dtype": token_type,
                    "blake2b": digest,
                }
            )
        fsync_dir(folder / f"seg-{index:03d}")
        records.append(shards)
    fsync_dir(folder)
    return records
