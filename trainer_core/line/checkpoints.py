"""The checkpoints of a line as files: which are complete, what they hold, whether their bytes are sound.

Without torch: the trainer writes checkpoints (`trainer_core.train.checkpoint`); everybody reads them here.
`u<N>.part` is a write under way or cut off; `u<N>` was renamed from it when it was whole, so anything missing
in it is damage, not an unfinished write. Other names in the folder are not ours.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainer_core.errors import Refused
from trainer_core.line.files import read_json
from trainer_core.line.paths import LinePaths

MANIFEST = "manifest.json"
STATE = "state.json"
CHUNK_BYTES = 64 * 1024 * 1024
"""Bytes under one hash of the manifest."""
SLICE_BYTES = 16 * 1024 * 1024
"""Most bytes of a file that are written or read at once."""
PART_SUFFIX = ".part"
_PUBLISHED = re.compile(r"u([0-9]+)")
_PART = re.compile(r"u[0-9]+\.part")


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """A complete checkpoint."""

    path: Path
    """Its directory."""
    update: int
    """Updates done."""
    tokens: int
    """Tokens trained."""
    cycle: int
    """Cycle of the next row."""
    part: int
    """Part of the next row."""
    row: int
    """Row within the part."""
    kept: str | None
    """Why it is kept for good (`start`, `cycle-end`, `length-change`, `end`), or None for a rolling one."""
    bytes: int
    """Size of its files."""


def read_state(path: Path) -> dict[str, Any]:
    """The checkpoint's state.json."""
    return read_json(path / STATE)


def _info(path: Path) -> CheckpointInfo | None:
    try:
        manifest = read_json(path / MANIFEST)
        state = read_state(path)
        sizes = {name: int(entry["bytes"]) for name, entry in manifest["files"].items()}
        if any((path / name).stat().st_size != size for name, size in sizes.items()):
            return None
        position = state["position"]
        return CheckpointInfo(
            path=path,
            update=state["update"],
            tokens=state["tokens"],
            cycle=position["cycle"],
            part=position["part"],
            row=position["row"],
            kept=state["kept"],
            bytes=sum(sizes.values()),
        )
    except (Refused, OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def published(paths: LinePaths) -> list[tuple[int, Path]]:
    """Update and directory of every checkpoint that was ever published and not removed, oldest first."""
    if not paths.checkpoints.is_dir():
        return []
    found = [
        (int(match[1]), path)
        for path in paths.checkpoints.iterdir()
        if (match := _PUBLISHED.fullmatch(path.name)) and path.is_dir()
    ]
    return sorted(found)


def list_checkpoints(paths: LinePaths) -> list[CheckpointInfo]:
    """The complete checkpoints, oldest first; damaged ones are left out."""
    return [info for _, path in published(paths) if (info := _info(path)) is not None]


def newest(paths: LinePaths) -> CheckpointInfo | None:
    """The newest complete checkpoint: the resume point. `latest` is only a hint for people."""
    found = list_checkpoints(paths)
    return found[-1] if found else None


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """What the manifest says of a file."""

    bytes: int
    """Its size."""
    chunks: tuple[str, ...]
    """Digest of each chunk, in order."""
    digest: str | None
    """Digest of the whole file, where its writer took one; the chunks say as much."""


def verify(path: Path, *, threads: int = 1, only: Collection[str] | None = None) -> list[str]:
    """Compare every chunk of every file with the manifest; returns the problems, each naming its file.

    `only` leaves out all files but those it names. Reads up to `threads` files at once, in slices. Raises
    OSError when the files are there but cannot be read: that says nothing about their bytes.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        size, new_hash = int(manifest["chunk_bytes"]), partial(hashlib.new, str(manifest["algorithm"]))
        new_hash()
        entries = {
            name: _Entry(
                bytes=int(entry["bytes"]), chunks=tuple(map(str, entry["chunks"])), digest=entry.get("digest")
            )
            for name, entry in manifest["files"].items()
        }
    except FileNotFoundError:
        return [f"{path / MANIFEST}: missing"]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        return [f"{path / MANIFEST}: unreadable ({error})"]
    if missing := [name for name in (STATE, *(only or ())) if name not in entries]:
        return [f"{path / MANIFEST}: does not list {missing[0]}"]
    names = entries if only is None else [name for name in entries if name in only]
    with ThreadPoolExecutor(threads, "verify") as pool:
        found = pool.map(lambda name: _verify_file(path / name, entries[name], size, new_hash), names)
        return [problem for problem in found if problem is not None]


def _verify_file(path: Path, entry: _Entry, size: int, new_hash: Callable[[], hashlib._Hash]) -> str | None:
    """What is wrong with a file whose chunks have `size` bytes."""
    hashes = [new_hash()] if entry.digest is not None else []
    buffer = memoryview(bytearray(min(SLICE_BYTES, max(entry.bytes, 1))))
    try:
        with open(path, "rb", buffering=0) as file:
            for index, expected in enumerate(entry.chunks):
                if _digest(file, size, new_hash(), hashes, buffer) != expected:
                    return f"{path}: chunk {index} (bytes from {index * size}) does not match its digest"
            length = file.tell()
            if length != entry.bytes or file.read(1):
                return f"{path}: not the {entry.bytes} bytes that were written"
    except FileNotFoundError:
        return f"{path}: missing"
    whole = hashes[0].hexdigest() if hashes else None
    return None if whole == entry.digest else f"{path}: does not match its digest"


def _digest(
    file: io.FileIO, size: int, chunk: hashlib._Hash, others: Sequence[hashlib._Hash], buffer: memoryview
) -> str:
    """Hash the next `size` bytes of a file, or as many as it has, slice by slice; the chunk's digest."""
    left = size
    while left > 0 and (count := file.readinto(buffer[:left])):
        for hasher in (chunk, *others):
            hasher.update(buffer[:count])
        left -= count
    return chunk.hexdigest()


def discard_partial(paths: LinePaths) -> list[str]:
    """Remove what interrupted writes left, before a start; returns the names. Touches nothing else."""
    if not paths.checkpoints.is_dir():
        return []
    removed = []
    for path in sorted(paths.checkpoints.iterdir()):
        if _PART.fullmatch(path.name):
            shutil.rmtree(path)
            removed.append(path.name)
        elif path.name.startswith(".latest.") and path.name.endswith(".tmp"):
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed
