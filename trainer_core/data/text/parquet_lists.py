"""Lists in a column of a parquet file: chats, or several texts in one row.

Reads lists of structs and lists of texts (all list and text types), columns of type null, and text columns
that hold the list as JSON. Only the wanted fields are read from disk, and they are read flat: one array per
field for all rows of a batch, cut by the lengths of the lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer_core.data.text.documents import Element
from trainer_core.data.text.elements import JsonElements
from trainer_core.data.text.parquet import (
    batches,
    column_values,
    doubled,
    is_text,
    opened,
    refuse_column,
    refuse_doubled,
    text_values,
)
from trainer_core.errors import Refused


def list_rows(path: Path, column: str, fields: Sequence[str] | None) -> Iterator[list[Element] | None]:
    """The elements of every row; `fields` names what is read of each, None means that they are texts."""
    with opened(path) as file:
        leaves = _leaves(path, file, column, fields)
        if leaves:
            for batch in batches(path, file, leaves):
                yield from _rows(batch.column(column), fields)
            return
    elements = JsonElements(str(path), column, fields)
    for row, value in enumerate(column_values(path, column), start=1):
        yield elements.read(value, row)
    elements.finish()


def check_list_column(path: Path, column: str, fields: Sequence[str] | None) -> None:
    """Raises Refused if the footer is damaged or has no such column of lists."""
    with opened(path) as file:
        _leaves(path, file, column, fields)


def text_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Every row's texts and lists, by column, as Python values; lists that are not UTF-8 are left out.

    The values of columns that share a name come as one list.
    """
    with opened(path) as file:
        names = list(dict.fromkeys(field.name for field in file.schema_arrow if _holds_text(field.type)))
        twice = doubled(file.schema_arrow.names)
        if not names:
            return
        for batch in batches(path, file, names):
            columns: dict[str, list[list[Any]]] = {}
            for field, array in zip(batch.schema, batch.columns, strict=True):
                if _holds_text(field.type):
                    columns.setdefault(field.name, []).append(_plain_values(array))
            for row in range(batch.num_rows):
                yield {
                    name: [values[row] for values in same] if name in twice else same[0][row]
                    for name, same in columns.items()
                }


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists."""
    lists = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(test(kind) for test in lists)


def _holds_text(kind: pa.DataType) -> bool:
    """Whether a column is of texts, or of lists with texts."""
    if is_list(kind):
        kind = kind.value_type
        if pa.types.is_struct(kind):
            return any(is_text(kind.field(index).type) for index in range(kind.num_fields))
    return is_text(kind)


def _plain_values(array: pa.Array) -> list[Any]:
    if is_text(array.type):
        return text_values(array)
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [None] * len(array)


def _leaves(path: Path, file: pq.ParquetFile, column: str, fields: Sequence[str] | None) -> list[str]:
    """Paths of the columns on disk that hold the fields; [] for a column of texts. Raises Refused."""
    schema = file.schema_arrow
    refuse_doubled(path, schema, column)
    expected = "a list of texts" if fields is None else f"a list of structs with {list(fields)}"
    if column not in schema.names or not is_list(schema.field(column).type):
        refuse_column(path, schema, column, expected=f"{expected}, or strings that hold one as JSON")
        return []
    kind = schema.field(column).type.value_type
    below = [file.schema.column(index).path for index in range(len(file.schema))]
    below = [leaf for leaf in below if leaf.startswith(f"{column}.")]
    if fields is None or pa.types.is_null(kind):
        good = is_text(kind)
    else:
        good = pa.types.is_struct(kind) and all(
            kind.get_field_index(field) >= 0 and is_text(kind.field(field).type) for field in fields
        )
    if not good:
        raise Refused(f"{path}: column {column!r} is {schema.field(column).type}, expected {expected}")
    if fields is None or pa.types.is_null(kind):
        return below
    # A deeper field of the same name has a longer path.
    return [min((b for b in below if b.endswith(f".{field}")), key=len) for field in fields]


def _rows(array: pa.Array, fields: Sequence[str] | None) -> Iterator[list[Element] | None]:
    """Lists of one batch, from flat arrays."""
    flat = array.flatten()
    if pa.types.is_struct(flat.type):
        columns = [text_values(flat.field(field)) for field in fields or ()]
    else:
        columns = [text_values(flat)] * len(fields or ("text",))
    elements: list[Element] = list(zip(*columns, strict=True))
    if flat.null_count:
        valid = flat.is_valid().to_pylist()
        elements = [element if there else None for element, there in zip(elements, valid, strict=True)]
    start = 0
    for length in pc.list_value_length(array).to_pylist():
        if length is None:
            yield None
        else:
            yield elements[start : start + length]
            start += length
