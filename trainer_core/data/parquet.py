"""One text column of a parquet file, read in batches by the file's own schema.

Reads strings, large strings, string views, UTF-8 in binary columns, all of them dictionary-encoded or not,
and columns of type null. Never reads other columns, never loses the last partial batch: the rows are counted
against the footer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainer_core.errors import Refused

_BATCH_ROWS = 1024


def column_values(path: Path, column: str) -> Iterator[str | bytes | None]:
    """A column's values in row order. Raises Refused if it is missing or no text, or the file is damaged."""
    with _opened(path) as file:
        _refuse_column(path, file.schema_arrow, column)
        num_rows = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[column], use_threads=False):
            num_rows += batch.num_rows
            yield from _python_values(batch.column(0))
        if num_rows != file.metadata.num_rows:
            raise Refused(f"{path}: truncated: {num_rows} of {file.metadata.num_rows} rows; fetch it again")


def check_column(path: Path, column: str) -> None:
    """Raises Refused if the footer is damaged or has no such text column."""
    with _opened(path) as file:
        _refuse_column(path, file.schema_arrow, column)


def string_column_sizes(path: Path, num_rows: int) -> dict[str, int]:
    """Characters of every text column in the first rows."""
    with _opened(path) as file:
        names = [field.name for field in file.schema_arrow if _is_text(field.type)]
        sizes = dict.fromkeys(names, 0)
        if names:
            for batch in file.iter_batches(batch_size=num_rows, columns=names, use_threads=False):
                for name in names:
                    sizes[name] = sum(len(value) for value in _python_values(batch.column(name)) if value)
                break
        return sizes


def _refuse_column(path: Path, schema: pa.Schema, column: str) -> None:
    if column not in schema.names:
        raise Refused(f"{path}: no column {column!r}; it has {schema.names}")
    kind = schema.field(column).type
    if not _is_text(kind):
        raise Refused(
            f"{path}: column {column!r} is {kind}, expected strings; the columns are {schema.names}"
        )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    texts = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_null,
    )
    return any(test(kind) for test in texts)


def _python_values(array: pa.Array) -> list[str | bytes | None]:
    """Python values of an array; strings that are not UTF-8 come as the bytes they are."""
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        binary = pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary()
        return list(array.cast(binary).to_pylist())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The open file; what pyarrow says about a damaged file becomes Refused, errors of the disk stay."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise Refused(f"{path}: truncated or damaged parquet ({error}); fetch it again") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise Refused(f"{path}: truncated or damaged parquet ({error}); fetch it again") from error
