"""Reads single parameters out of the flat tensor of a checkpoint: a model is never held as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer_core.engine.layout import Layout, Slot
from trainer_core.errors import Refused
from trainer_core.line.checkpoints import SLICE_BYTES

_ELEMENT = 4
"""Bytes of an element: checkpoints hold float32."""


class FlatFile:
    """An open file with one flat float32 tensor. Goes on reading when the file is removed meanwhile."""

    def __init__(self, path: Path, layout: Layout) -> None:
        """Raises FileNotFoundError without a file, Refused when it is none of this layout."""
        self._path = path
        self._slots = {slot.name: slot for slot in layout.slots}
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._start = self._check(layout.total)
        except BaseException:
            self.close()
            raise

    def read(self, name: str) -> Tensor:
        """The parameter of this name, in memory of its own."""
        slot = self._slots[name]
        tensor = torch.empty(slot.shape, dtype=torch.float32)
        place = memoryview(tensor.view(-1).numpy()).cast("B")  # type: ignore[arg-type]
        for piece in self.pieces(name):
            place[: len(piece)] = piece
            place = place[len(piece) :]
        assert not len(place)
        return tensor

    def pieces(self, name: str) -> Iterator[memoryview]:
        """The bytes of a parameter, a slice at a time; the memory of a slice is used for the next one."""
        slot = self._slots[name]
        offset, left = self._offset(slot), slot.numel * _ELEMENT
        buffer = memoryview(bytearray(min(SLICE_BYTES, left)))
        while left:
            count = os.preadv(self._fd, [buffer[:left]], offset)
            if not count:
                raise Refused(f"{self._path}: ends after {offset} bytes, before the tensor does")
            yield buffer[:count]
            offset, left = offset + count, left - count

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> FlatFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _offset(self, slot: Slot) -> int:
        return self._start + slot.offset * _ELEMENT

    def _check(self, total: int) -> int:
        """Where the tensor of `total` elements begins."""
        length = int.from_bytes(os.pread(self._fd, 8, 0), "little")
        try:
            header: dict[str, Any] = json.loads(os.pread(self._fd, min(length, 1 << 16), 8))
            (entry,) = header.values()
            found = entry["dtype"], entry["shape"], entry["data_offsets"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refused(f"{self._path}: not a checkpoint's tensor ({error})") from error
        if found != ("F32", [total], [0, total * _ELEMENT]):
            raise Refused(f"{self._path}: expected one tensor of {total} float32 values, found {found[:2]}")
        return 8 + length
