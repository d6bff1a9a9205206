"""The checkpoints of a line as files: which are complete, what they hold, whether their bytes are sound.

Without torch: the trainer writes checkpoints (`trainer_core.train.checkpoint`); everybody reads them here.
A checkpoint is complete when its manifest, written last, is there and every listed file has its size.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.errors import Refused
from trainer_core.line.files import read_json
from trainer_core.line.paths import LinePaths

MANIFEST = "manifest.json"
STATE = "state.json"
CHUNK_BYTES = 64 * 1024 * 1024
PART_SUFFIX = ".part"


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
    """Why it is kept for good (`start`, `cycle-end`, `end`), or None for a rolling one."""
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


def list_checkpoints(paths: LinePaths) -> list[CheckpointInfo]:
    """The complete checkpoints, oldest first; anything half-written is left out."""
    if not paths.checkpoints.is_dir():
        return []
    found = [
        info
        for path in paths.checkpoints.iterdir()
        if path.name.startswith("u") and path.name[1:].isdigit() and (info := _info(path)) is not None
    ]
    return sorted(found, key=lambda info: info.update)


def newest(paths: LinePaths) -> CheckpointInfo | None:
    """The newest complete checkpoint: the resume point. `latest` is only a hint for people."""
    found = list_checkpoints(paths)
    return found[-1] if found else None


def verify(path: Path) -> list[str]:
    """Compare every chunk of every file with the manifest; returns the problems, each naming its file."""
    try:
        manifest = read_json(path / MANIFEST)
        files, size = manifest["files"], int(manifest["chunk_bytes"])
        hasher = getattr(hashlib, manifest["algorithm"])
    except (Refused, KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"{path / MANIFEST}: unreadable ({error})"]
    problems = []
    for name, entry in files.items():
        problems += _verify_file(path / name, entry, size, hasher)
    return problems


def _verify_file(path: Path, entry: dict[str, Any], size: int, hasher: Any) -> list[str]:
    whole = hasher()
    try:
        with open(path, "rb") as file:
            for index, expected in enumerate(entry["chunks"]):
                chunk = file.read(size)
                whole.update(chunk)
                if hasher(chunk).hexdigest() != expected:
                    return [f"{path}: chunk {index} (bytes from {index * size}) does not match its digest"]
            if file.read(1):
                return [f"{path}: longer than the {entry['bytes']} bytes that were written"]
    except OSError as error:
        return [f"{path}: {error.strerror or error}"]
    return [] if whole.hexdigest() == entry["digest"] else [f"{path}: does not match its digest"]


def discard_partial(paths: LinePaths) -> list[str]:
    """Remove what interrupted writes left, before a start; returns the names."""
    if not paths.checkpoints.is_dir():
        return []
    complete = {info.path.name for info in list_checkpoints(paths)}
    removed = []
    for path in sorted(paths.checkpoints.iterdir()):
        if path.is_dir() and path.name.startswith("u") and path.name not in complete:
            shutil.rmtree(path)
            removed.append(path.name)
        elif path.name.startswith(".") and path.name.endswith(".tmp"):
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed
