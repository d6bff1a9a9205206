"""How nstrain writes files so that a reader never sees half of one, whatever dies in between.

Whole files: written beside the target, fsynced, renamed over it, and the directory fsynced, in this order.
JSON lines: one O_APPEND write per row; a torn last line (power loss) is dropped by the reader.
This module never decides what a file means.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer_core.errors import DiskFull, Refused, disk_full

_HASH_SLICE = 1 << 20


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces: equal values give equal bytes. NaN is refused."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def sha256_json(value: Any) -> str:
    """Hex sha256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_HASH_SLICE):
            digest.update(chunk)
    return digest.hexdigest()


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does, or a folder's names; None when it cannot be looked at."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def fsync_dir(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` with `data` atomically. Raises DiskFull when there is no room; the old file stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_dir(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if disk_full(error):
            raise DiskFull(
                f"{path}: no space left to write {len(data)} bytes; free space and start again"
            ) from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically; key order is kept, so people's order survives."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, text.encode("utf-8") + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises Refused naming the file when it cannot be read or is not a JSON object.

    NaN, Infinity and a key that stands twice are refused too: nobody means them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Refused(f"{path}: this file does not exist") from None
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: not UTF-8 text ({error})") from None
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror})") from error
    try:
        value = parse_json(text)
    except json.JSONDecodeError as error:
        raise Refused(
            f"{path}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def parse_json(text: str) -> Any:
    """A JSON value, without NaN, Infinity or a key that stands twice. Raises ValueError or RecursionError."""
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_doubles)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number that JSON has")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {double!r} stands twice in one object")
    return value


def append_jsonl(path: Path, row: dict[str, Any]) -> None:
    """Append one row with a single O_APPEND write, so that rows of several writers never mix.

    A last line torn by a power loss is closed with a newline first, so that it spoils only itself.
    """
    line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            written = os.write(descriptor, line)
            if written != len(line):
                raise DiskFull(f"{path}: only {written} of {len(line)} bytes of a row fit on the disk")
        finally:
            os.close(descriptor)
    except OSError as error:
        if disk_full(error):
            raise DiskFull(f"{path}: no space left to append a row; free space and start again") from error
        raise


def iterate_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file in order; a missing file has none, torn lines are left out."""
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below; opening alone may fail)
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if (row := parse_row(line)) is not None:
                yield row


def parse_row(line: bytes) -> dict[str, Any] | None:
    """One line of a JSON-lines file; None for a torn one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All rows of a JSON-lines file (see `iterate_jsonl`)."""
    return list(iterate_jsonl(path))


def publish(part: Path, final: Path) -> None:
    """Rename a finished directory or file (its contents already fsynced) into place and make it durable."""
    os.rename(part, final)
    fsync_dir(final.parent)
