"""Writing checkpoints beside training: a snapshot now, the files in the background, published by a rename.

A checkpoint blocks the loop only for one copy. It appears whole or not at all: files, then the manifest, each
fsynced; then the rename. Files are written and hashed in slices out of the snapshot, so that nothing is held
twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer_core.engine.backends.protocol import Wait
from trainer_core.errors import DiskFull, disk_full
from trainer_core.line.checkpoints import CHUNK_BYTES, MANIFEST, PART_SUFFIX, SLICE_BYTES, STATE
from trainer_core.line.files import fsync_dir, publish, write_bytes
from trainer_core.line.paths import LinePaths
from trainer_core.train.snapshot import Host, Snapshot

ALGORITHM = "blake2b"
_DTYPES = {torch.float32: "F32", torch.float64: "F64"}


def safetensors_header(name: str, dtype: torch.dtype, numel: int) -> bytes:
    """Header of a safetensors file with one flat tensor (8-byte length, JSON padded to 8 bytes)."""
    entry = {"dtype": _DTYPES[dtype], "shape": [numel], "data_offsets": [0, numel * dtype.itemsize]}
    text = json.dumps({name: entry}, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class _HashedFile:
    """A file written once, each chunk of it hashed on the way."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._chunk = hashlib.new(ALGORITHM)
        self._chunks: list[str] = []
        self._in_chunk = 0
        self._bytes = 0

    def write(self, data: memoryview) -> None:
        """Append bytes in slices that never cross a chunk."""
        while len(data):
            piece = data[: min(SLICE_BYTES, CHUNK_BYTES - self._in_chunk)]
            written = os.write(self._fd, piece)
            self._chunk.update(piece[:written])
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
        return {"bytes": self._bytes, "chunks": self._chunks}

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


def _write_tensor(path: Path, pieces: Sequence[Tensor]) -> dict[str, Any]:
    numel = sum(piece.numel() for piece in pieces)
    header = safetensors_header(path.stem, pieces[0].dtype, numel)
    bodies = [memoryview(piece.numpy().data).cast("B") for piece in pieces]
    return _write_file(path, memoryview(header), *bodies)


def write_checkpoint(
    paths: LinePaths,
    update: int,
    tensors: Mapping[str, Sequence[Tensor]],
    state: Mapping[str, Any],
    *,
    threads: int = 1,
) -> Path:
    """Write and publish `checkpoints/u<update>`; returns it. Raises DiskFull, leaving older ones untouched.

    `tensors` are flat CPU tensors by file name, each in consecutive pieces; `state` becomes state.json. Up to
    `threads` files are written and hashed at once.
    """
    final = paths.checkpoint(update)
    part = final.with_name(final.name + PART_SUFFIX)
    try:
        paths.checkpoints.mkdir(exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        places = [part / f"{name}.safetensors" for name in tensors]
        with ThreadPoolExecutor(threads, "checkpoint-file") as pool:
            entries = list(pool.map(_write_tensor, places, tensors.values()))
        files = {path.name: entry for path, entry in zip(places, entries, strict=True)}
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
    """Takes snapshots of the live tensors and writes them, one at a time, beside the loop."""

    def __init__(self, paths: LinePaths, live: Mapping[str, Tensor], host: Host, *, threads: int = 1) -> None:
        """`live` are the flat tensors by file name; their snapshot's memory is allocated and touched now."""
        self._paths = paths
        self._snapshot = Snapshot(live, host)
        self._threads = threads
        # A pool, for its thread is there already: the loop would wait until a new one has begun to run.
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._pool.submit(lambda: None).result()
        self._writing: Future[Path] | None = None

    def save(self, update: int, state: Mapping[str, Any], before: Callable[[], None]) -> None:
        """Copy the live tensors and start writing; the writer must be idle (see `idle`).

        `before` is called beside the loop too: what it does is done before the checkpoint is published.
        """
        assert self._writing is None, "a checkpoint is still being written"
        copied = self._snapshot.take()
        self._writing = self._pool.submit(self._write, copied, before, update, dict(state))

    def _write(self, copied: Wait, before: Callable[[], None], update: int, state: dict[str, Any]) -> Path:
        copied()
        before()
        return write_checkpoint(self._paths, update, self._snapshot.pieces(), state, threads=self._threads)

    def idle(self, timeout: float = 0.0) -> bool:
        """Whether nothing is being written, after waiting at most `timeout` seconds.

        Raises what the last write raised, once.
        """
        if self._writing is None:
            return True
        if not wait([self._writing], timeout).done:
            return False
        written, self._writing = self._writing, None
        written.result()
        return True
