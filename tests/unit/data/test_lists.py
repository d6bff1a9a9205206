"""Several texts in one row are one document, joined by text or by a token of its own."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer_core.data.sources import TextRule
from trainer_core.data.text.documents import Chat
from trainer_core.data.text.read import ReadCounts, check_file, iter_documents, resolve_rule
from trainer_core.errors import Refused

SEP = "<sep>"
FILES = TextRule(kind="list", column="files", field="content", join="\n")
TEXTS = TextRule(kind="list", column="files", field=None, join="\n")
VALUES: list[list[str | None] | None] = [["a", "b\r\n", None, "c\x00"], None, [], [None, " "], ["", "d"]]
JOINED = ["a\nb\r\n\nc\x00", "\nd"]
COUNTS = {"null": 1, "empty": 2, "null_parts": 2}


def structs(values: Any) -> Any:
    """Lists of files as a repository has them."""
    return [
        row and [{"content_id": 7, "content": text, "meta": {"content": "inner"}} for text in row]
        for row in values
    ]


def read(path: Path, rule: TextRule, *markers: str) -> tuple[list[Any], dict[str, int]]:
    counts = ReadCounts()
    return list(iter_documents(path, rule, counts, markers)), counts.to_json()


def write(path: Path, rows: Any) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"files": row}) + "\n" for row in rows))
    else:
        pq.write_table(pa.table({"id": pa.array(range(len(rows))), "files": rows}), path)
    return path


def test_every_kind_of_list(tmp_path: Path) -> None:
    as_json = [json.dumps(row) for row in VALUES]
    for path in (
        write(tmp_path / "a.jsonl", VALUES),
        write(tmp_path / "json.jsonl", as_json),
        write(tmp_path / "json.parquet", pa.array(as_json)),
        write(tmp_path / "a.parquet", pa.array(VALUES, pa.list_(pa.string()))),
        write(tmp_path / "b.parquet", pa.array(VALUES, pa.large_list(pa.large_string()))),
        write(tmp_path / "c.parquet", pa.array(VALUES, pa.list_view(pa.string_view()))),
        write(tmp_path / "d.parquet", pa.array(VALUES, pa.list_(pa.dictionary(pa.int32(), pa.string())))),
    ):
        assert read(path, TEXTS) == (JOINED, COUNTS), path
        check_file(path, TEXTS)


def test_lists_of_structs_are_read_by_one_field(tmp_path: Path) -> None:
    for path in (
        write(tmp_path / "a.jsonl", structs(VALUES)),
        write(tmp_path / "a.parquet", pa.array(structs(VALUES))),
    ):
        assert read(path, FILES) == (JOINED, COUNTS), path
    fixed = pa.array([["a", "b"], None, ["c", None]], pa.list_(pa.string(), 2))
    assert read(write(tmp_path / "b.parquet", fixed), TEXTS)[0] == ["a\nb", "c"]


def test_a_join_that_is_a_marker_is_a_token_and_the_texts_are_plain(tmp_path: Path) -> None:
    rule = TextRule(kind="list", column="files", field=None, join=SEP)
    path = write(tmp_path / "a.jsonl", [["a", f"b{SEP}c"], ["alone"]])
    assert read(path, rule, SEP)[0] == [
        Chat(parts=("a", SEP, f"b{SEP}c"), is_token=(False, True, False)),
        Chat(parts=("alone",), is_token=(False,)),
    ]
    assert read(path, rule)[0] == [f"a{SEP}b{SEP}c", "alone"]


def test_bad_lists_are_refused_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"a\.jsonl: row 1: column 'files': element 1: expected a string"):
        read(write(tmp_path / "a.jsonl", [["x", 5]]), TEXTS)
    with pytest.raises(Refused, match=r"expected an object with \['content'\], found a string"):
        read(write(tmp_path / "a.jsonl", [["x"]]), FILES)
    for rows, rule in (
        (pa.array([["x"]]), FILES),
        (pa.array(structs([["x"]])), TEXTS),
        (pa.array([1]), TEXTS),
    ):
        path = write(tmp_path / "a.parquet", rows)
        with pytest.raises(Refused, match=r"a\.parquet: column 'files' is .*expected a list of"):
            check_file(path, rule)
        with pytest.raises(Refused, match=r"a\.parquet: column 'files' is .*expected a list of"):
            read(path, rule)


def test_auto_names_the_rule_for_lists(tmp_path: Path) -> None:
    for rows, said in (
        ([["text " * 20]], '"text": {"list": "files", "field": null, "join": "\\n"}'),
        (structs([["text " * 20]]), '"text": {"list": "files", "field": "content", "join": "\\n"}'),
    ):
        for name in ("a.jsonl", "a.parquet"):
            with pytest.raises(Refused) as refused:
                resolve_rule(
                    write(tmp_path / name, rows if name == "a.jsonl" else pa.array(rows)), TextRule()
                )
            assert said in str(refused.value)
