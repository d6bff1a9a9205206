"""Reads the data line's own records: the one place where a damaged file becomes a sentence that names it.

A record is a JSON object with a `format`, made into typed values by its owner's `parse`. Whatever parsing
damaged content raises, and every value of a wrong type, ends in Refused with the file, the cause and the way
out. Never decides what a record means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from trainer_core.errors import Refused
from trainer_core.line.files import canonical_json, read_json

Record = TypeVar("Record")


def read_record(path: Path, form: str, parse: Callable[[dict[str, Any]], Record], *, way_out: str) -> Record:
    """Read and parse a record of the format `form`. Raises Refused, with the way out, when it is damaged."""
    try:
        value = read_json(path)
    except Refused as error:
        raise Refused([f"{problem}; {way_out}" for problem in error.problems]) from error
    if value.get("format") != form:
        raise Refused(f"{path}: format is {value.get('format')!r}, this version reads {form!r}; {way_out}")
    with damage_named(path, way_out):
        record = parse(value)
        _check_types(record)
    return record


@contextmanager
def damage_named(path: Path, way_out: str) -> Iterator[None]:
    """Whatever damaged content makes the block raise becomes Refused naming the file; Refused passes."""
    try:
        yield
    except Refused:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        raise Refused(f"{path}: damaged or edited by hand ({_cause(error)}); {way_out}") from error


def refuse_other(found: Any, written: Any, at: str = "") -> None:
    """Raise ValueError naming the first key in which a record is not what its own values are written as.

    Keys that nothing reads, and left-out ones that reading would fill in, differ so.
    """
    if isinstance(found, dict) and isinstance(written, dict):
        for key in sorted({*found, *written}, key=str):
            name = f"{at}.{key}" if at else str(key)
            if key not in written:
                raise ValueError(f"{name}: no record has this key")
            if key not in found:
                raise ValueError(f"{name}: this key is missing")
            refuse_other(found[key], written[key], name)
    elif isinstance(found, list) and isinstance(written, list | tuple) and len(found) == len(written):
        for index, (one, other) in enumerate(zip(found, written, strict=True)):
            refuse_other(one, other, f"{at}.{index}")
    elif found != written:
        raise ValueError(f"{at}: is {found!r}, its other values make it {written!r}")


def _cause(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc']) or 'content'}: {first['msg']}"
    return f"{type(error).__name__}: {error}"


def _check_types(record: Any) -> None:
    """Compare every field with its annotation; a dataclass itself takes what it is given."""
    if isinstance(record, Mapping):
        for entry in record.values():
            _check_types(entry)
    elif is_dataclass(record) and not isinstance(record, type):
        _adapter(type(record)).validate_json(canonical_json(asdict(record)), strict=True)


@lru_cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
