"""JSON lines, plain or compressed, as rows: the part of reading that knows about lines and frames.

Never skips a row and never takes a cut file for a shorter one: gzip and zstd streams must end with their end
mark, every line must be one JSON object, and the message names file and line.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from trainer_core.data.files.listing import suffix_of
from trainer_core.data.text.documents import Damaged, Element
from trainer_core.data.text.elements import JsonElements
from trainer_core.errors import Refused

_CHUNK = 1 << 20
_BOM = b"\xef\xbb\xbf"
_COLUMNS_SHOWN = 20


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file in order. Raises Refused at a line that is none, and for cut files."""
    for number, line in enumerate(_lines(path), start=1):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line.decode("utf-8", "surrogateescape"))
        except ValueError as error:
            raise Damaged(
                f"{path}: line {number} is not JSON ({error}); the file may be cut: fetch it again"
            ) from None
        except RecursionError:
            raise Refused(f"{path}: line {number} is nested too deeply") from None
        if not isinstance(row, dict):
            raise Refused(f"{path}: line {number} holds {type(row).__name__}, expected a JSON object")
        yield row


def column_values(path: Path, column: str) -> Iterator[str | None]:
    """One key of every row, None where a row lacks it. Raises Refused if all rows do or one is no string."""
    for number, value in _cells(path, column):
        if value is not None and not isinstance(value, str):
            raise Refused(f"{path}: row {number}: {column!r} is {type(value).__name__}, expected a string")
        yield value


def check_column(path: Path, column: str) -> None:
    """Raises Refused if no row has the key; reads as far as the first that has a value there."""
    with closing(_cells(path, column)) as cells:
        next((value for _, value in cells if value is not None), None)


def list_rows(path: Path, column: str, fields: Sequence[str] | None) -> Iterator[list[Element] | None]:
    """The elements of every row's list; `fields` names what is read of each, None: they are texts."""
    elements = JsonElements(str(path), column, fields)
    for number, value in _cells(path, column):
        yield elements.read(value, number)
    elements.finish()


def _cells(path: Path, column: str) -> Generator[tuple[int, Any]]:
    """Number, from 1, and value of one key in every row; raises Refused if no row has it."""
    num_rows, present = 0, False
    seen: dict[str, None] = {}
    for num_rows, row in enumerate(rows(path), start=1):
        if column in row:
            present = True
        elif not present:
            seen.update(dict.fromkeys(row))
        yield num_rows, row.get(column)
    if num_rows and not present:
        raise Refused(f"{path}: no column {column!r}; it has {list(seen)[:_COLUMNS_SHOWN]}")


def refuse_wide_encoding(path: Path, head: bytes) -> None:
    """Refuse UTF-16 and UTF-32 by their mark, or by the zero bytes that ASCII text has in them."""
    marked = head.startswith((b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff"))
    zeros = [byte == 0 for byte in head[:4]]
    patterns = ([False, True, False, True], [True, False, True, False], [False, True, True, True])
    if marked or zeros in (*patterns, [True, True, True, False]):
        raise Refused(f"{path}: this file is UTF-16 or UTF-32; convert it to UTF-8")


def _lines(path: Path) -> Iterator[bytes]:
    """Lines without their LF; the byte order mark of the file is dropped."""
    with _opened(path) as stream:
        head = stream.read(_CHUNK)
        refuse_wide_encoding(path, head[:4])
        parts = head.removeprefix(_BOM).split(b"\n")
        pending = [parts.pop()]
        yield from parts
        while chunk := stream.read(_CHUNK):
            parts = chunk.split(b"\n")
            pending.append(parts[0])
            if len(parts) > 1:
                yield b"".join(pending)
                yield from parts[1:-1]
                pending = [parts[-1]]
        yield b"".join(pending)


@contextmanager
def _opened(path: Path) -> Iterator[_Stream]:
    """The decompressed bytes; errors of the codec become Refused, errors of the disk stay what they are."""
    suffix = suffix_of(path)
    if suffix != ".jsonl" and path.stat().st_size == 0:
        raise Damaged(f"{path}: truncated: a compressed file cannot have 0 bytes; fetch it again")
    try:
        if suffix == ".jsonl.gz":
            with gzip.open(path, "rb") as stream:
                yield stream
        elif suffix == ".jsonl.zst":
            with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, "zstd") as stream:
                yield stream
        else:
            with open(path, "rb") as stream:
                yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Damaged(f"{path}: truncated or damaged ({error}); fetch it again") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise Damaged(f"{path}: truncated or damaged ({error}); fetch it again") from error
