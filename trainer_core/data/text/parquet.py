"""One column of texts of a parquet file, read in batches by the file's own schema.

Reads strings, large strings, string views, UTF-8 in binary columns, all of them dictionary-encoded or not,
and columns of type null. Never reads other columns, never loses the last partial batch: the rows are counted
against the footer. Memory is bounded by bytes, not by rows or row groups: a column chunk is read through a
small buffer, page by page, and a batch has few rows where rows are large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trainer_core.data.text.documents import Damaged, Raw
from trainer_core.errors import Refused

_BATCH_BYTES = 2 << 20
# Small, because a footer says nothing of how large dictionary-encoded values are.
_BATCH_ROWS = 128
_BUFFER_BYTES = 1 << 20


def column_values(path: Path, column: str) -> Iterator[Raw | None]:
    """A column's values in row order. Raises Refused if it is missing or no text, or the file is damaged."""
    with opened(path) as file:
        refuse_column(path, file.schema_arrow, column)
        for batch in batches(path, file, [column]):
            yield from text_values(batch.column(column))


def check_column(path: Path, column: str) -> None:
    """Raises Refused if the footer is damaged or has no such text column."""
    with opened(path) as file:
        refuse_column(path, file.schema_arrow, column)


def refuse_column(path: Path, schema: pa.Schema, column: str, *, expected: str = "strings") -> None:
    """Raise Refused unless the column is there and holds texts."""
    if column not in schema.names:
        raise Refused(f"{path}: no column {column!r}; it has {schema.names}")
    refuse_doubled(path, schema, column)
    kind = schema.field(column).type
    if not is_text(kind):
        raise Refused(
            f"{path}: column {column!r} is {kind}, expected {expected}; the columns are {schema.names}"
        )


def doubled(names: Sequence[str]) -> list[str]:
    """Names that stand for several columns."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def doubled_columns(path: Path) -> list[str]:
    """Names of a file that stand for several columns."""
    with opened(path) as file:
        return doubled(file.schema_arrow.names)


def refuse_doubled(path: Path, schema: pa.Schema, column: str) -> None:
    """Raise Refused if several columns have the name: nothing says which of them is meant."""
    if column in doubled(schema.names):
        raise Refused(
            f"{path}: column {column!r} is there {schema.names.count(column)} times; write the file again "
            "with a name for each column"
        )


def batches(path: Path, file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """All rows of the columns (names, or paths below them), a few megabytes at a time."""
    num_rows = 0
    rows = _batch_rows(file.metadata, columns)
    # Group by group, because arrow joins no dictionaries inside lists across groups.
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(
            batch_size=rows, row_groups=[group], columns=list(columns), use_threads=False
        ):
            num_rows += batch.num_rows
            yield batch
    if num_rows != file.metadata.num_rows:
        raise Damaged(f"{path}: truncated: {num_rows} of {file.metadata.num_rows} rows; fetch it again")


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are texts, or nulls alone."""
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


def text_values(array: pa.Array) -> list[Raw | None]:
    """Python values of an array; strings that are not UTF-8 come as the bytes they are."""
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        binary = pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary()
        return list(array.cast(binary).to_pylist())


@contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """The open file; what pyarrow says about a damaged file becomes Damaged, errors of the disk stay."""
    try:
        # Without a buffer the reader would load whole column chunks, which may be gigabytes.
        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            yield file
    except MemoryError:
        raise
    except pa.ArrowNotImplementedError as error:
        raise Refused(
            f"{path}: pyarrow {pa.__version__} cannot read columns stored like this ({error}); write the "
            "file again with plain types"
        ) from error
    except pa.ArrowException as error:
        raise Damaged(f"{path}: truncated or damaged parquet ({error}); fetch it again") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise Damaged(f"{path}: truncated or damaged parquet ({error}); fetch it again") from error


def _batch_rows(metadata: pq.FileMetaData, columns: Sequence[str]) -> int:
    """Rows worth a batch where the rows of these columns are largest."""
    prefixes = tuple(f"{column}." for column in columns)
    schema = metadata.schema
    leaves = [
        index
        for index, path in enumerate(schema.column(i).path for i in range(len(schema)))
        if path in columns or path.startswith(prefixes)
    ]
    rows = _BATCH_ROWS
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = sum(group.column(leaf).total_uncompressed_size for leaf in leaves)
        if size > 0:
            rows = min(rows, max(1, group.num_rows * _BATCH_BYTES // size))
    return rows
