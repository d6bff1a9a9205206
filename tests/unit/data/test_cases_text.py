"""Reported faults of reading and encoding text, each from its files to the tokens of a data line."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.tools.text_line import CASES, text_line, texts, tokenized
from tests.unit.data.inputs import write, zstd
from trainer_core.data.sources import TextRule
from trainer_core.data.text.read import ReadCounts, iter_documents
from trainer_core.data.tokens.holdout import is_held_out
from trainer_core.errors import Refused

B01 = CASES / "B01"
TOKENIZER = B01 / "tokenizer.json"
EOS = 1
TEXT = TextRule(kind="column", column="text")


def unpacked(folder: Path, packed: Path) -> Path:
    path = folder / packed.name.removesuffix(".gz")
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    return path


def read(path: Path) -> tuple[list[str], dict[str, int]]:
    counts = ReadCounts()
    return [str(document) for document in iter_documents(path, TEXT, counts)], counts.to_json()


def test_b01_markers_in_code_are_plain_ids_in_every_format(tmp_path: Path) -> None:
    lines = unpacked(tmp_path, B01 / "code.jsonl.gz")
    packed = tmp_path / "zst.jsonl.zst"
    packed.write_bytes(zstd(lines.read_bytes()))
    files = [lines, B01 / "code.parquet", B01 / "code.jsonl.gz", packed]
    expected = json.loads((B01 / "expect.json").read_text())["plain_ids"]
    work = text_line(tmp_path, {"code": files}, TOKENIZER)
    for file in files:
        documents = tokenized(work, "code", file.name)
        assert documents == [[*ids, EOS] for ids in expected], file.name
        assert not {0, *range(2, 10)} & {number for ids in documents for number in ids}


def test_b01_declared_markers_are_tokens_of_a_chat(tmp_path: Path) -> None:
    expected = json.loads((B01 / "expect.json").read_text())
    markers = expected["markers_of_chat"]
    text = json.loads((B01 / "chat.jsonl").read_text())["text"]
    files = [B01 / "chat.jsonl", write(tmp_path / "chat.parquet", [text])]
    work = text_line(tmp_path, {"chat": files}, TOKENIZER, markers=markers)
    for file in files:
        assert tokenized(work, "chat", file.name) == [[*ids, EOS] for ids in expected["chat_ids"]]
    (ids,) = tokenized(work, "chat", "chat.jsonl")
    assert (ids.count(3), ids.count(4), ids.count(EOS)) == (2, 2, 1)


def test_b01_the_same_chat_as_messages_has_the_same_ids(tmp_path: Path) -> None:
    expected = json.loads((B01 / "expect.json").read_text())
    start, end = expected["markers_of_chat"]
    messages = [
        {"role": "user", "content": "what does </s> mean?"},
        {"role": "assistant", "content": "end of text"},
    ]
    typed = [{"role": "user", "content": f"type {end} now"}]
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in (messages, typed)))
    rule = {"messages": "messages", "template": [start, "{role}\n{content}", end, "\n"]}
    work = text_line(tmp_path, {"chat": [path]}, TOKENIZER, markers=[start, end], text=rule)
    first, second = tokenized(work, "chat", "chat.jsonl")
    assert [first] == [[*ids, EOS] for ids in expected["chat_ids"]]
    assert (second.count(3), second.count(4)) == (1, 1)
    assert texts(work, "chat", "chat.jsonl")[1] == f"{start}user\ntype {end} now{end}\n"


def test_b03_marks_and_line_ends_give_the_clean_documents(tmp_path: Path) -> None:
    files = [CASES / "B03" / name for name in ("bom_crlf.jsonl", "clean.jsonl")]
    for kind, pack in ((".gz", gzip.compress), (".zst", zstd)):
        files.append(tmp_path / f"bom_crlf.jsonl{kind}")
        files[-1].write_bytes(pack(files[0].read_bytes()))
    work = text_line(tmp_path, {"code": files}, TOKENIZER)
    clean = tokenized(work, "code", "clean.jsonl")
    assert len(clean) == 3
    assert all(tokenized(work, "code", file.name) == clean for file in files)
    found = [read(file)[0] for file in files]
    assert found[0][1] == "two\r\nlines kept" and not any(text.startswith("\ufeff") for text in found[0])
    decisions = [[is_held_out(t, identity="code", fraction=0.5) for t in documents] for documents in found]
    assert all(each == decisions[0] for each in decisions)


def test_b03_a_plain_file_with_a_mark_is_one_document_without_it() -> None:
    (document,) = iter_documents(CASES / "B03" / "plain_bom.txt", TextRule(kind="whole"))
    raw = (CASES / "B03" / "plain_bom.txt").read_bytes()
    assert str(document).encode() == raw.removeprefix(b"\xef\xbb\xbf") and len(raw) == len(document) + 3


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt"])
def test_b03_wide_encodings_are_refused_by_name(tmp_path: Path, encoding: str, suffix: str) -> None:
    path = tmp_path / f"utf16{suffix}"
    data = '{"text": "sixteen bits"}\n'.encode(encoding)
    path.write_bytes({".gz": gzip.compress, ".zst": zstd}.get(path.suffix, bytes)(data))
    with pytest.raises(Refused, match=rf"utf16\{suffix}: this file is UTF-16 or UTF-32"):
        text_line(tmp_path, {"code": [path]}, TOKENIZER)


def test_b05_text_after_a_nul_is_kept(tmp_path: Path) -> None:
    files = [CASES / "B05" / "nul.jsonl", CASES / "B05" / "nul.parquet"]
    for kind, pack in ((".gz", gzip.compress), (".zst", zstd)):
        files.append(tmp_path / f"nul.jsonl{kind}")
        files[-1].write_bytes(pack(files[0].read_bytes()))
    rows = pq.read_table(files[1]).column("text").to_pylist()
    assert read(files[1]) == (rows, {}) and rows[0] == "before\0after" and rows[1] == "\0\0\0\0"
    work = text_line(tmp_path, {"code": files}, TOKENIZER)
    for file in files:
        assert texts(work, "code", file.name) == rows, file.name
        assert [len(ids) for ids in tokenized(work, "code", file.name)][1] == 5


def test_b07_files_of_five_schemas_in_every_order_of_reading(tmp_path: Path) -> None:
    parts = [CASES / "B07" / f"part-{number}.parquet" for number in range(5)]
    expected = {part.name: read(part)[0] for part in parts}
    assert all(len(documents) == 2 for documents in expected.values())
    orders = [*itertools.permutations(range(5))][::20]
    assert len(orders) == 6
    for number, order in enumerate(orders):
        root = tmp_path / str(number)
        root.mkdir()
        placed = [root / f"{position}-{parts[part].name}" for position, part in enumerate(order)]
        for position, part in enumerate(order):
            shutil.copyfile(parts[part], placed[position])
        work = text_line(root, {"code": placed}, TOKENIZER, text={"column": "text"})
        for path in placed:
            assert texts(work, "code", path.name) == expected[path.name[2:]]


def test_b07_a_file_without_the_column_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    for name in ("0-odd.parquet", "z-odd.parquet"):
        root = tmp_path / name
        root.mkdir()
        odd = root / name
        shutil.copyfile(CASES / "B07" / "part-5.parquet", odd)
        with pytest.raises(Refused, match=rf"{name}: no column 'text'; it has \['content'\]"):
            text_line(
                root, {"code": [CASES / "B07" / "part-0.parquet", odd]}, TOKENIZER, text={"column": "text"}
            )


def test_b07_a_column_that_changes_its_type_in_json_lines(tmp_path: Path) -> None:
    files = [CASES / "B07" / f"drift-{number}.jsonl" for number in (0, 1)]
    for number, order in enumerate((files, files[::-1])):
        root = tmp_path / str(number)
        placed = []
        for position, file in enumerate(order):
            placed.append(root / f"{position}-{file.name}")
            placed[-1].parent.mkdir(exist_ok=True)
            shutil.copyfile(file, placed[-1])
        work = text_line(root, {"code": placed}, TOKENIZER)
        documents = sorted(text for path in placed for text in texts(work, "code", path.name))
        assert documents == ["a1", "a1", "a1", "b1", "b2"]


@pytest.mark.parametrize(
    "name", ["cut.jsonl.gz", "cut.jsonl.zst", "noframesize_cut.jsonl.zst", "cut.parquet", "tail.jsonl"]
)
def test_b09_a_cut_file_is_refused_at_init_and_at_reading(tmp_path: Path, name: str) -> None:
    path = CASES / "B09" / name
    said = "is not JSON" if name == "tail.jsonl" else "truncated"
    with pytest.raises(Refused, match=rf"{name}: .*{said}.*fetch it again"):
        read(path)
    with pytest.raises(Refused, match=name):
        text_line(tmp_path, {"code": [path]}, TOKENIZER)
    assert not (tmp_path / "line" / "data.json").exists()
