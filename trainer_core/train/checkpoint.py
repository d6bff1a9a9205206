"""Writing checkpoints beside training: a snapshot now, the files in the background, published by a rename.

The snapshot buffers are allocated and touched at the start, so that a checkpoint blocks the loop only for one
copy. A checkpoint appears whole or not at all: files, then the manifest, each fsynced; then the rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer_core.errors import DiskFull, disk_full
from trainer_core.line.checkpoints import CHUNK_BYTES, MANIFEST, PART_SUFFIX, STATE
from trainer_core.line.files import fsync_dir, publish, write_bytes
from trainer_core.line.paths import LinePaths

ALGORITHM = "blake2b"
_SLICE_BYTES = 16 * 1024 * 1024
_DTYPES = {torch.float32: "F32", torch.float64: "F64"}


def safetensors_header(name: str, tensor: Tensor) -> bytes:
    """Header of a safetensors file with this one flat tensor (8-byte length, JSON padded to 8 bytes)."""
    size = tensor.numel() * tensor.element_size()
    entry = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [0, size]}
    text = json.dumps({name: entry}, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class _HashedFile:
    """A file written once, hashed on the way: a digest of the whole and one per chunk."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._whole = hashlib.new(ALGORITHM)
        self._chunk = hashlib.new(ALGORITHM)
        self._chunks: list[str] = []
        self._in_chunk = 0
        self._bytes = 0

    def write(self, data: memoryview) -> None:
        """Append bytes in slices that never cross a chunk."""
        while len(data):
            piece = data[: min(_SLICE_BYTES, CHUNK_BYTES - self._in_chunk)]
            written = os.write(self._fd, piece)
            piece = piece[:written]
            self._whole.update(piece)
            self._chunk.update(piece)
            self._bytes += written
            self._in_chunk += written
            if self._in_chunk == CHUNK_BYTES:
                self._close_chunk()
            data = data[written:]

    def _close_chunk(self) -> None:
        self._chunks.append(self._chunk.hexdigest())
        self._chunk = hashlib.new(ALGORITHM)
        self._in_chunk = 0

    def finish(self) -> dict[str, Any]:
        """Make the file durable; returns its manifest entry."""
        if self._in_chunk:
            self._close_chunk()
        os.fsync(self._fd)
        self.close()
        return {"bytes": self._bytes, "digest": self._whole.hexdigest(), "chunks": self._chunks}

    def close(self) -> None:
        """Close without a claim (after an error)."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _write_file(path: Path, *parts: memoryview) -> dict[str, Any]:
    file = _HashedFile(path)
    try:
        for part in parts:
            file.write(part)
        return file.finish()
    finally:
        file.close()


def write_checkpoint(
    paths: LinePaths, update: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Path:
    """Write and publish `checkpoints/u<update>`; returns it. Raises DiskFull, leaving older ones untouched.

    `tensors` are flat CPU tensors by file name; `state` becomes state.json.
    """
    final = paths.checkpoint(update)
    part = final.with_name(final.name + PART_SUFFIX)
    try:
        paths.checkpoints.mkdir(exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        files = {}
        for name, tensor in tensors.items():
            header = memoryview(safetensors_header(name, tensor))
            body = memoryview(tensor.numpy().data).cast("B")
            files[f"{name}.safetensors"] = _write_file(part / f"{name}.safetensors", header, body)
        files[STATE] = _write_file(part / STATE, memoryview(_json(state)))
        manifest = {
            "format": "checkpoint/1",
            "algorithm": ALGORITHM,
            "chunk_bytes": CHUNK_BYTES,
            "files": files,
        }
        _write_file(part / MANIFEST, memoryview(_json(manifest)))
        fsync_dir(part)
        publish(part, final)
        write_bytes(paths.latest, final.name.encode("utf-8") + b"\n")
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if disk_full(error):
            raise DiskFull(
                f"{final}: no space left for the checkpoint of update {update}; the checkpoints before it "
                "are intact. Free space and start the line again"
            ) from error
        raise
    return final


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


class CheckpointWriter:
    """Takes snapshots of the live tensors and writes them, one at a time, on a thread of its own."""

    def __init__(self, paths: LinePaths, live: Mapping[str, Tensor]) -> None:
        """`live` are the flat tensors by file name; their snapshot buffers are allocated and touched now."""
        self._paths = paths
        self._live = live
        self._snapshot = {
            name: torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu") for name, tensor in live.items()
        }
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, update: int, state: Mapping[str, Any]) -> None:
        """Copy the live tensors and start writing; the writer must be idle (see `idle`)."""
        assert self._thread is None, "a checkpoint is still being written"
        for name, tensor in self._live.items():
            self._snapshot[name].copy_(tensor)
        self._thread = threading.Thread(target=self._write, args=(update, dict(state)), name="checkpoint")
        self._thread.start()

    def _write(self, update: int, state: dict[str, Any]) -> None:
        try:
            write_checkpoint(self._paths, update, self._snapshot, state)
        except BaseException as error:
            self._error = error

    def idle(self, timeout: float = 0.0) -> bool:
        """Whether nothing is being written, after waiting at most `timeout` seconds.

        Raises what the last write raised, once.
        """
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return True
