"""Reading: every document of a file, in order, or the file is refused; never a shorter or another one."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.data.inputs import json_lines, write, zstd
from trainer_core.data.sources import TextRule
from trainer_core.data.text.read import ReadCounts, check_file, iter_documents, resolve_rule
from trainer_core.errors import Refused

TEXT = TextRule(kind="column", column="text")
SUFFIXES = ["a.parquet", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst"]


def read(path: Path, rule: TextRule = TEXT) -> tuple[list[str], dict[str, int]]:
    counts = ReadCounts()
    return list(iter_documents(path, rule, counts)), counts.to_json()


def table(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("name", SUFFIXES)
def test_every_format_gives_all_documents_in_order(tmp_path: Path, name: str) -> None:
    texts = [f"row {i}" for i in range(2501)]
    assert read(write(tmp_path / name, texts)) == (texts, {})


@pytest.mark.parametrize("name", SUFFIXES)
def test_null_and_blank_texts_are_skipped_and_counted(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, ["a", None, "", " \n", "\x00\x00", "b\x00c"])
    assert read(path) == (["a", "\x00\x00", "b\x00c"], {"null": 1, "empty": 2})


def test_a_large_line_that_spans_many_chunks_is_one_document(tmp_path: Path) -> None:
    texts = ["x" * 5_000_000, "y", "z" * (1 << 20)]
    assert read(write(tmp_path / "a.jsonl", texts))[0] == texts


def test_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "first"}, {"text": "two\r\nlines"}, {"text": "\ufefflast"}]
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(json.dumps(row).encode() for row in rows))
    assert read(path)[0] == ["first", "two\r\nlines", "\ufefflast"]


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert read(path) == (["one\r\ntwo\r\n"], {})
    path.write_bytes(b" \n")
    assert read(path) == ([], {"empty": 1})
    path.write_bytes(b"caf\xe9")
    with pytest.raises(Refused, match=r"a\.txt: not UTF-8 at byte 3"):
        read(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_wide_encodings_are_refused_by_name(tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes('{"text": "garbage"}\n'.encode(encoding))
    with pytest.raises(Refused, match="UTF-16 or UTF-32"):
        read(path)


def test_lone_surrogates_and_foreign_bytes_are_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"text": "a\\ud800b"}\n{"text": "\\ud83d\\ude00"}\n{"text": "caf\xe9"}\n{"text": "\\ufffd"}\n'
    )
    assert read(path) == (["a\ufffdb", "\U0001f600", "caf\ufffd", "\ufffd"], {"replaced": 2})
    binary = table(tmp_path / "b.parquet", text=pa.array([b"caf\xe9", b"ok"], pa.binary()))
    assert read(binary) == (["caf\ufffd", "ok"], {"replaced": 1})
    lying = pa.Array.from_buffers(pa.string(), 2, pa.array([b"caf\xe9", b"ok"], pa.binary()).buffers())
    assert read(table(tmp_path / "c.parquet", text=lying)) == (["caf\ufffd", "ok"], {"replaced": 1})


COLUMNS: dict[str, Callable[[], pa.Array]] = {
    "string": lambda: pa.array(["doc a", "doc b"]),
    "large": lambda: pa.array(["doc a", "doc b"], pa.large_string()),
    "view": lambda: pa.array(["doc a", "doc b"], pa.string_view()),
    "dictionary": lambda: pa.array(["doc a", "doc b"]).dictionary_encode(),
    "binary": lambda: pa.array([b"doc a", b"doc b"]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_parquet_types_that_hold_text(tmp_path: Path, kind: str) -> None:
    path = table(tmp_path / "a.parquet", meta=pa.nulls(2), text=COLUMNS[kind]())
    assert read(path)[0] == ["doc a", "doc b"]


def test_a_parquet_column_of_type_null_has_no_documents(tmp_path: Path) -> None:
    assert read(table(tmp_path / "a.parquet", text=pa.nulls(3))) == ([], {"null": 3})


def test_a_missing_or_unsuited_column_is_refused_with_the_columns_there_are(tmp_path: Path) -> None:
    other = table(tmp_path / "a.parquet", content=pa.array(["x"]), n=pa.array([1]))
    with pytest.raises(Refused, match=r"a\.parquet: no column 'text'; it has \['content', 'n'\]"):
        read(other)
    with pytest.raises(Refused, match="no column 'text'"):
        check_file(other, TEXT)
    with pytest.raises(Refused, match="column 'n' is int64"):
        read(other, TextRule(kind="column", column="n"))
    lines = write(tmp_path / "a.jsonl", ["x"], column="content")
    with pytest.raises(Refused, match=r"a\.jsonl: no column 'text'; it has \['content'\]"):
        read(lines)


def test_json_lines_are_read_row_by_row_whatever_other_columns_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows: list[dict[str, Any]] = [
        {"text": "a", "d": None},
        {"text": "b", "d": "s"},
        {"text": "c", "d": {}},
        {"d": 1},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read(path) == (["a", "b", "c"], {"null": 1})


@pytest.mark.parametrize("line", ['{"text": "cut', "[1]", '{"text": 5}', '{"text": {"a": 1}}', "nonsense"])
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + line)
    with pytest.raises(Refused, match=r"a\.jsonl: (line|row) 2"):
        read(path)


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.97, "one byte"])
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "a.jsonl.zst"])
def test_a_cut_file_is_refused_never_taken_for_a_shorter_one(tmp_path: Path, name: str, keep: Any) -> None:
    path = write(tmp_path / name, [f"document {i} {i * 7919 % 1009}" for i in range(3000)])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 1 if keep == "one byte" else int(len(data) * keep)])
    with pytest.raises(Refused, match=rf"{name}: truncated"):
        read(path)


def test_zstd_without_content_size_and_several_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    parts = [json_lines([f"{i} {j}" for j in range(500)]) for i in range(3)]
    path.write_bytes(b"".join(map(zstd, parts)))
    assert len(read(path)[0]) == 1500
    path.write_bytes(b"".join(map(zstd, parts))[:-3])
    with pytest.raises(Refused, match="truncated"):
        read(path)


def test_gzip_with_flipped_bits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    data = bytearray(gzip.compress(json_lines([f"document {i}" for i in range(3000)])))
    data[-6] ^= 1
    path.write_bytes(data)
    with pytest.raises(Refused, match="damaged"):
        read(path)


def test_parquet_with_a_damaged_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"document {i} {i * 7919 % 1009}" for i in range(3000)]
    pq.write_table(pa.table({"text": texts}), path, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    for place in range(200, 260):
        data[place] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(Refused, match=r"a\.parquet: truncated or damaged"):
        read(path)


def test_disk_errors_are_not_taken_for_damage(tmp_path: Path) -> None:
    for name in SUFFIXES:
        with pytest.raises(FileNotFoundError):
            read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_auto_takes_the_only_large_string_column(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    rows = [{"id": f"id-{i}", "n": i, "content": "long text " * 20, "lang": "en"} for i in range(50)]
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert resolve_rule(path, TextRule()) == TextRule(kind="column", column="content")
    assert read(path, TextRule())[0] == ["long text " * 20] * 50


def test_auto_refuses_two_large_columns_by_name(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", q=pa.array(["question " * 9]), a=pa.array(["answer " * 9]))
    with pytest.raises(Refused, match=r"'q': 81, 'a': 63"):
        resolve_rule(path, TextRule())


def test_auto_says_nothing_where_there_is_no_text(tmp_path: Path) -> None:
    assert resolve_rule(write(tmp_path / "a.parquet", [None, ""]), TextRule()) is None
    assert resolve_rule(write(tmp_path / "a.txt", ["x"]), TextRule()) == TextRule(kind="whole")
