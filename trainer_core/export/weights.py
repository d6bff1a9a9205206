"""Writes weights as safetensors, in one file or several with an index, a slice of a parameter at a time.

The first bytes of a file say where every tensor in it lies; they follow from shapes alone, so tensors are
written behind them in one pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.export.flat_file import FlatFile
from trainer_core.export.folder import Folder

SHARD_BYTES = 5_000_000_000
"""Most bytes of weights in a file, unless one tensor has more."""


@dataclass(frozen=True, kw_only=True)
class Tensor32:
    """A float32 tensor to write."""

    name: str
    """Its name in the export."""
    source: str
    """The parameter that it is."""
    shape: tuple[int, ...]
    """Its shape."""

    @property
    def bytes(self) -> int:
        """Its size."""
        size = 4
        for n in self.shape:
            size *= n
        return size


def shards(tensors: Sequence[Tensor32], limit: int) -> list[list[Tensor32]]:
    """The tensors in their order, cut where a file would pass `limit` bytes."""
    files: list[list[Tensor32]] = []
    room = 0
    for tensor in tensors:
        if not files or tensor.bytes > room:
            files.append([])
            room = limit
        files[-1].append(tensor)
        room -= tensor.bytes
    return files


def header(tensors: Sequence[Tensor32]) -> bytes:
    """The first bytes of a file that holds these tensors, in this order."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.bytes
        entries[tensor.name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_weights(
    folder: Folder, weights: FlatFile, tensors: Sequence[Tensor32], *, limit: int = SHARD_BYTES
) -> None:
    """Write model.safetensors, or its parts with model.safetensors.index.json."""
    files = shards(tensors, limit)
    names = [_name(number, len(files)) for number in range(1, len(files) + 1)]
    for name, inside in zip(names, files, strict=True):
        folder.write(name, _content(weights, inside))
    if len(files) > 1:
        folder.write_json("model.safetensors.index.json", _index(dict(zip(names, files, strict=True))))


def _name(number: int, of: int) -> str:
    return "model.safetensors" if of == 1 else f"model-{number:05d}-of-{of:05d}.safetensors"


def _content(weights: FlatFile, tensors: Sequence[Tensor32]) -> Iterator[bytes | memoryview]:
    yield header(tensors)
    for tensor in tensors:
        yield from weights.pieces(tensor.source)


def _index(files: Mapping[str, Sequence[Tensor32]]) -> dict[str, Any]:
    every = [tensor for inside in files.values() for tensor in inside]
    size = sum(tensor.bytes for tensor in every)
    return {
        "metadata": {"total_parameters": size // 4, "total_size": size},
        "weight_map": {tensor.name: name for name, inside in files.items() for tensor in inside},
    }
