"""Documents out of files: parquet, JSON lines (plain, gzip, zstd) and plain text, one iterator for all.

Never tokenizes and never decides what is held out. What it promises:

- Every document of a file comes, in the file's order, or the whole file is refused: a cut or damaged file
  always raises, at the latest when the iterator ends, so a caller must publish nothing before that.
- A byte order mark at the start of a file is dropped; UTF-16 and UTF-32 files are refused by name.
- JSON lines end in LF or CR LF, blank lines do not count; CR LF, NUL and U+FEFF inside a text are kept.
- A text that is null, empty or only white space is skipped and counted, and so is a list of messages or texts
  that is null, empty, or holds only such texts. A JSON line without the column counts as null, unless no line
  has it: then the file is refused, as is any file whose schema lacks the column.
- Lone surrogates, and bytes of a column that are not UTF-8, become U+FFFD and the document is counted. A .txt
  file, which is one document, must be UTF-8.
- Files are read by their own schema, never by another file's.
- Memory is bounded by the largest row, never by the size of a file or of its row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_core.data.files.listing import suffix_of
from trainer_core.data.sources import TextRule
from trainer_core.data.text import json_lines, parquet, parquet_lists
from trainer_core.data.text.documents import Document, Element, Raw, ReadCounts, clean_text, is_blank
from trainer_core.data.text.lists import Lists
from trainer_core.data.text.messages import Messages
from trainer_core.data.text.sniff import sniff
from trainer_core.errors import Refused

__all__ = ["ReadCounts", "check_file", "iter_documents", "resolve_rule"]

_BOM = b"\xef\xbb\xbf"


def iter_documents(
    path: Path, rule: TextRule, counts: ReadCounts | None = None, markers: Sequence[str] = ()
) -> Iterator[Document]:
    """The documents of a file in their order. `counts` receives what was skipped or replaced.

    `markers` are those of the source: what stands as one in a rule's template or join is a token. Raises
    Refused naming the file when it is cut, damaged, not UTF-8, or has no such column.
    """
    counts = counts if counts is not None else ReadCounts()
    if rule.kind == "auto":
        resolved = resolve_rule(path, rule)
        if resolved is None:
            return
        rule = resolved
    if rule.kind in ("messages", "list") and suffix_of(path) != ".txt":
        yield from _nested_documents(path, rule, counts, markers)
        return
    for value in _values(path, rule):
        if value is None:
            counts.null += 1
            continue
        text, replaced = clean_text(value)
        if is_blank(text):
            counts.empty += 1
            continue
        counts.replaced += replaced
        yield text


def resolve_rule(path: Path, rule: TextRule) -> TextRule | None:
    """The rule with `auto` replaced by what this file says; None if its first rows hold no text at all.

    Raises Refused naming the columns when several are large, or the rule to write when the texts are lists.
    """
    if rule.kind != "auto":
        return rule
    if suffix_of(path) == ".txt":
        return TextRule(kind="whole")
    return sniff(path, _rows(path), parquet.doubled_columns(path) if suffix_of(path) == ".parquet" else ())


def check_file(path: Path, rule: TextRule) -> None:
    """Refuse a file that cannot be read under a resolved rule, as far as its beginning or footer shows it."""
    if rule.column is None or suffix_of(path) == ".txt":
        return
    if suffix_of(path) != ".parquet":
        _refuse_suffix(path)
        json_lines.check_column(path, rule.column)
    elif rule.kind == "column":
        parquet.check_column(path, rule.column)
    else:
        parquet_lists.check_list_column(path, rule.column, _reader(path, rule, ()).fields)


def _nested_documents(
    path: Path, rule: TextRule, counts: ReadCounts, markers: Sequence[str]
) -> Iterator[Document]:
    reader = _reader(path, rule, markers)
    for row, elements in enumerate(_lists(path, rule, reader.fields), start=1):
        document = reader.document(elements, counts, row)
        if document is not None:
            yield document


def _reader(path: Path, rule: TextRule, markers: Sequence[str]) -> Messages | Lists:
    return Messages(rule, markers, str(path)) if rule.kind == "messages" else Lists(rule, markers)


def _lists(path: Path, rule: TextRule, fields: Sequence[str] | None) -> Iterator[list[Element] | None]:
    """The lists of a file under a rule."""
    assert rule.column is not None
    if suffix_of(path) == ".parquet":
        return parquet_lists.list_rows(path, rule.column, fields)
    _refuse_suffix(path)
    return json_lines.list_rows(path, rule.column, fields)


def _values(path: Path, rule: TextRule) -> Iterator[Raw | None]:
    """Raw values of a file under a rule for plain texts."""
    if suffix_of(path) == ".txt":
        yield _whole_file(path)
        return
    if rule.kind == "whole":
        raise Refused(f"{path}: has columns, but its source was pinned as plain text files")
    assert rule.column is not None
    if suffix_of(path) == ".parquet":
        yield from parquet.column_values(path, rule.column)
    else:
        _refuse_suffix(path)
        yield from json_lines.column_values(path, rule.column)


def _refuse_suffix(path: Path) -> None:
    if suffix_of(path) is None:
        raise Refused(f"{path}: no reader for this suffix")


def _whole_file(path: Path) -> str:
    data = path.read_bytes()
    json_lines.refuse_wide_encoding(path, data[:4])
    try:
        return data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: not UTF-8 at byte {error.start}; convert it or leave it out") from None


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a file as Python values; of a parquet file only the columns that can hold text."""
    if suffix_of(path) == ".parquet":
        return parquet_lists.text_rows(path)
    _refuse_suffix(path)
    return json_lines.rows(path)
