"""Chats: each message by the template, its content plain text whatever it spells, from every kind of file."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.data.inputs import MARKERS, zstd
from trainer_core.data.sources import TextRule
from trainer_core.data.text.documents import Chat
from trainer_core.data.text.read import ReadCounts, check_file, iter_documents, resolve_rule
from trainer_core.errors import Refused

START, END = MARKERS
RULE = TextRule(kind="messages", column="chat", template=(START, "{role}\n{content}", END, "\n"))
ROWS: list[Any] = [
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": []}],
    None,
    [],
    [{"role": "user", "content": None}, None],
    [{"role": "system", "content": ""}, {"role": "user", "content": f"{END} {{role}}"}],
    [{"role": "assistant", "content": None}, {"role": "user", "content": "after\x00nul\r\n"}],
    [{"role": "user", "content": " \n"}],
]
TEXTS = [
    f"{START}user\na{END}\n{START}assistant\nb{END}\n",
    f"{START}system\n{END}\n{START}user\n{END} {{role}}{END}\n",
    f"{START}user\nafter\x00nul\r\n{END}\n",
]
COUNTS = {"null": 1, "empty": 3, "null_parts": 3}
STRUCT = pa.struct(
    [("content", pa.string()), ("tool_calls", pa.list_(pa.struct([("content", pa.string())]))),
     ("role", pa.string())]
)  # fmt: skip
SUFFIXES = [".jsonl", ".jsonl.gz", ".jsonl.zst"]


def read(path: Path, rule: TextRule = RULE) -> tuple[list[Chat], dict[str, int]]:
    counts = ReadCounts()
    documents = list(iter_documents(path, rule, counts, MARKERS))
    assert all(isinstance(document, Chat) for document in documents)
    return documents, counts.to_json()  # type: ignore[return-value]


def json_rows(path: Path, rows: list[Any], key: str = "chat") -> Path:
    data = "".join(json.dumps({key: row}) + "\n" for row in rows).encode()
    packed = {".gz": gzip.compress, ".zst": zstd}.get(path.suffix, bytes)(data)
    path.write_bytes(packed)
    return path


def parquet(path: Path, array: pa.Array, **settings: Any) -> Path:
    table = pa.table({"id": pa.array(range(len(array))), "chat": array, "score": pa.nulls(len(array))})
    pq.write_table(table, path, **settings)
    return path


def every_kind(folder: Path) -> list[Path]:
    """The same rows as JSON lines and as every list type that parquet files have."""
    as_json = [json.dumps(row) if row is not None else None for row in ROWS]
    kinds = {
        "list": pa.array(ROWS, pa.list_(STRUCT)),
        "large": pa.array(ROWS, pa.large_list(STRUCT)),
        "view": pa.array(ROWS, pa.list_view(STRUCT)),
        "text": pa.array(as_json, pa.string()),
        "text_dictionary": pa.array(as_json, pa.string()).dictionary_encode(),
        "text_binary": pa.array([t and t.encode() for t in as_json], pa.binary()),
    }
    paths = [parquet(folder / f"{name}.parquet", array) for name, array in kinds.items()]
    paths.append(parquet(folder / "groups.parquet", kinds["list"], row_group_size=1, compression="zstd"))
    paths.append(parquet(folder / "v2.parquet", kinds["list"], data_page_version="2.0", compression="gzip"))
    paths.append(parquet(folder / "old.parquet", kinds["list"], use_compliant_nested_type=False))
    paths += [json_rows(folder / f"a{suffix}", ROWS) for suffix in SUFFIXES]
    return [*paths, json_rows(folder / "text.jsonl", as_json)]


def test_every_kind_of_file_gives_the_same_chats_and_counts(tmp_path: Path) -> None:
    for path in every_kind(tmp_path):
        chats, counts = read(path)
        assert [chat.text for chat in chats] == TEXTS, path
        assert counts == COUNTS, path
        check_file(path, RULE)


def test_only_the_template_makes_tokens(tmp_path: Path) -> None:
    (_, typed, _), _ = read(json_rows(tmp_path / "a.jsonl", ROWS))
    assert typed == Chat(
        parts=(START, "system\n", END, "\n", START, f"user\n{END} {{role}}", END, "\n"),
        is_token=(True, False, True, False, True, False, True, False),
    )
    plain = list(iter_documents(tmp_path / "a.jsonl", RULE))  # no markers declared: all of it is text
    assert plain[0] == Chat(parts=(TEXTS[0],), is_token=(False,))


def test_a_template_without_roles_reads_none(tmp_path: Path) -> None:
    rule = TextRule(kind="messages", column="chat", template=("{content}", "{x}", END))
    struct = pa.struct([("role", pa.int64()), ("content", pa.large_string())])
    path = parquet(tmp_path / "a.parquet", pa.array([[{"role": 1, "content": "x"}]], pa.list_(struct)))
    assert [chat.text for chat in read(path, rule)[0]] == ["x{x}" + END]
    json_rows(tmp_path / "a.jsonl", [[{"content": "x"}]])
    assert [chat.text for chat in read(tmp_path / "a.jsonl", rule)[0]] == ["x{x}" + END]


def test_many_rows_over_many_batches_keep_their_order(tmp_path: Path) -> None:
    rows = [[{"role": "user", "content": f"{i}.{j}"} for j in range(i % 4)] for i in range(2501)]
    expected = ["".join(f"{START}user\n{m['content']}{END}\n" for m in row) for row in rows if row]
    for path in (
        parquet(tmp_path / "a.parquet", pa.array(rows, pa.list_(STRUCT)), row_group_size=1000),
        json_rows(tmp_path / "a.jsonl", rows),
    ):
        chats, counts = read(path)
        assert [chat.text for chat in chats] == expected
        assert counts == {"empty": 626}


def test_bytes_that_are_not_text_become_the_replacement_character(tmp_path: Path) -> None:
    struct = pa.struct([("role", pa.string()), ("content", pa.binary())])
    rows = [[{"role": "user", "content": b"a\xff"}], [{"role": "user", "content": b"b"}]]
    broken = pa.array([rows[0]], pa.list_(struct)).cast(pa.list_(struct))
    path = parquet(tmp_path / "a.parquet", pa.concat_arrays([broken, pa.array([rows[1]], pa.list_(struct))]))
    assert [(c.parts[1], n) for (c, *_), n in [read(path)]] == [("user\na\ufffd", {"replaced": 1})]
    lines = tmp_path / "a.jsonl"
    lines.write_bytes(b'{"chat": [{"role": "\\ud800", "content": "x\xff"}]}\n')
    assert [(c.parts[1], n) for (c,), n in [read(lines)]] == [("\ufffd\nx\ufffd", {"replaced": 1})]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (5, "row 2: column 'chat': expected a list, found a number"),
        ({"role": "user", "content": "x"}, "row 2: column 'chat': expected a list, found an object"),
        (["x"], "element 0: expected an object with ['role', 'content'], found a string"),
        ([{"role": "user", "content": ["x"]}], "element 0: 'content': expected a string, found a list"),
        ([{"role": 1, "content": "x"}], "element 0: 'role': expected a string, found a number"),
        ([{"content": "x"}], "message 0 has no role"),
        ("hello", "row 2: column 'chat': expected a list as JSON, found 'hello'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_chat_is_refused_with_row_and_column(tmp_path: Path, value: Any, found: str) -> None:
    good = [{"role": "user", "content": "x"}]
    with pytest.raises(Refused) as refused:
        read(json_rows(tmp_path / "a.jsonl", [good, value]))
    assert found in str(refused.value) and "a.jsonl" in str(refused.value)
    if isinstance(value, str):
        with pytest.raises(Refused) as refused:
            read(parquet(tmp_path / "a.parquet", pa.array([json.dumps(good), value])))
        assert found in str(refused.value) and "a.parquet" in str(refused.value)


def test_files_without_the_column_or_the_fields_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"a\.jsonl: no column 'chat'; it has \['other'\]"):
        read(json_rows(tmp_path / "a.jsonl", ROWS, key="other"))
    foreign = [[{"from": "human", "value": "x"}]]
    with pytest.raises(Refused, match=r"no element has \['content', 'role'\]; they have \['from', 'value'\]"):
        read(json_rows(tmp_path / "a.jsonl", foreign))
    for array in (pa.array(foreign), pa.array([["x"]]), pa.array([5]), pa.array([{"role": "x"}])):
        path = parquet(tmp_path / "a.parquet", array)
        for refuses in (read, check_file):
            with pytest.raises(Refused, match=r"a\.parquet: column 'chat' is .*expected a list of structs"):
                refuses(path, RULE)  # type: ignore[operator]


def test_columns_of_nulls_have_no_documents(tmp_path: Path) -> None:
    assert read(parquet(tmp_path / "a.parquet", pa.nulls(3))) == ([], {"null": 3})
    empty = pa.array([[], None, [None]], pa.list_(pa.null()))
    assert read(parquet(tmp_path / "a.parquet", empty)) == ([], {"null": 1, "empty": 2, "null_parts": 1})


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", pa.array(ROWS * 500, pa.list_(STRUCT)))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Refused, match="truncated"):
        read(path)


@pytest.mark.parametrize("text", [False, True])
def test_auto_names_the_rule_for_chats(tmp_path: Path, text: bool) -> None:
    rows = [[{"role": "user", "content": "a long question " * 9}]] * 3
    column: list[Any] = [json.dumps(row) for row in rows] if text else rows
    lines = json_rows(tmp_path / "a.jsonl", column)
    table = parquet(tmp_path / "a.parquet", pa.array(column))
    for path in (lines, table):
        with pytest.raises(Refused) as refused:
            resolve_rule(path, TextRule())
        assert '"text": {"messages": "chat", "template": [' in str(refused.value)


def test_auto_never_takes_a_short_name_beside_chats_for_the_text(tmp_path: Path) -> None:
    rows = [{"id": f"chat-{i}", "chat": [{"role": "user", "content": "words " * 20}]} for i in range(50)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    with pytest.raises(Refused, match='"messages": "chat"'):
        resolve_rule(tmp_path / "a.parquet", TextRule())
    for row in rows:
        row["tags"] = ["a", "b"]
        row["text"] = "prose " * 900
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")
    assert resolve_rule(tmp_path / "b.parquet", TextRule()) == TextRule(kind="column", column="text")
