"""Documents out of files: parquet, JSON lines (plain, gzip, zstd) and plain text, one iterator for all.

Never tokenizes and never decides what is held out. What it promises:

- Every document of a file comes, in the file's order, or the whole file is refused: a cut or damaged file
  always raises, at the latest when the iterator ends, so a caller must publish nothing before that.
- A byte order mark at the start of a file is dropped; UTF-16 and UTF-32 files are refused by name.
- JSON lines end in LF or CR LF, blank lines do not count; CR LF, NUL and U+FEFF inside a text are kept.
- A text that is null, empty or only white space is skipped and counted. A JSON line without the column counts
  as null, unless no line has it: then the file is refused, as is any file whose schema lacks the column.
- Lone surrogates, and bytes of a column that are not UTF-8, become U+FFFD and the document is counted. A .txt
  file, which is one document, must be UTF-8.
- Files are read by their own schema, never by another file's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer_core.data import json_lines, parquet
from trainer_core.data.folder import suffix_of
from trainer_core.data.sources import TextRule
from trainer_core.errors import Refused

_SURROGATE = re.compile("[\ud800-\udfff]")
_BOM = b"\xef\xbb\xbf"
_SNIFFED_ROWS = 1000
_LARGE_PART = 0.1


@dataclass
class ReadCounts:
    """What reading a file left out or changed, in documents; filled while the iterator runs."""

    null: int = 0
    """Null texts, and JSON lines without the column."""
    empty: int = 0
    """Empty texts and texts of white space only."""
    replaced: int = 0
    """Documents in which undecodable bytes or lone surrogates became U+FFFD."""

    def to_json(self) -> dict[str, int]:
        """The counts that are not zero."""
        return {key: value for key, value in vars(self).items() if value}


def iter_documents(path: Path, rule: TextRule, counts: ReadCounts | None = None) -> Iterator[str]:
    """The documents of a file in their order. `counts` receives what was skipped or replaced.

    Raises Refused naming the file when it is cut, damaged, not UTF-8, or has no such column.
    """
    counts = counts if counts is not None else ReadCounts()
    for value in _values(path, rule):
        if value is None:
            counts.null += 1
            continue
        text = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
        if not text or text.isspace():
            counts.empty += 1
            continue
        if not text.isascii():
            text, num_replaced = _SURROGATE.subn("\ufffd", text)
            counts.replaced += num_replaced > 0
        yield text


def resolve_rule(path: Path, rule: TextRule) -> TextRule | None:
    """The rule with `auto` replaced by what this file says; None if its first rows hold no text at all.

    The large string column is the one that alone holds a tenth or more of the characters of the first 1,000
    rows. Raises Refused naming the columns when there are several.
    """
    if suffix_of(path) == ".txt":
        return TextRule(kind="whole") if rule.kind == "auto" else rule
    if rule.kind != "auto":
        return rule
    sizes = _column_sizes(path)
    total = sum(sizes.values())
    large = [name for name, size in sizes.items() if size >= _LARGE_PART * total]
    if not total:
        return None
    if len(large) == 1:
        return TextRule(kind="column", column=large[0])
    raise Refused(
        f"{path}: the text column is not plain: string columns and their characters in the first rows are "
        f'{sizes}; name one in the recipe: "text": {{"column": "<name>"}}'
    )


def check_file(path: Path, rule: TextRule) -> None:
    """Refuse a file that its footer already shows to be unreadable under a resolved rule (parquet only)."""
    if suffix_of(path) == ".parquet" and rule.column is not None:
        parquet.check_column(path, rule.column)


def _values(path: Path, rule: TextRule) -> Iterator[str | bytes | None]:
    """Raw values of a file under a rule."""
    suffix = suffix_of(path)
    if suffix == ".txt":
        yield _whole_file(path)
        return
    if rule.kind == "auto":
        resolved = resolve_rule(path, rule)
        if resolved is None:
            return
        rule = resolved
    if rule.kind == "whole":
        raise Refused(f"{path}: has columns, but its source was pinned as plain text files")
    assert rule.column is not None
    if suffix == ".parquet":
        yield from parquet.column_values(path, rule.column)
    elif suffix is not None:
        yield from json_lines.column_values(path, rule.column)
    else:
        raise Refused(f"{path}: no reader for this suffix")


def _whole_file(path: Path) -> str:
    data = path.read_bytes()
    json_lines.refuse_wide_encoding(path, data[:4])
    try:
        return data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: not UTF-8 at byte {error.start}; convert it or leave it out") from None


def _column_sizes(path: Path) -> dict[str, int]:
    """Characters of every string column in the first rows."""
    if suffix_of(path) == ".parquet":
        return parquet.string_column_sizes(path, _SNIFFED_ROWS)
    sizes: dict[str, int] = {}
    for index, row in enumerate(json_lines.rows(path)):
        if index == _SNIFFED_ROWS:
            break
        for name, value in row.items():
            if isinstance(value, str):
                sizes[name] = sizes.get(name, 0) + len(value)
    return sizes
