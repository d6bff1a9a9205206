"""A source without documents is an error that names it, in whichever position and of whichever kind it is."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tools.hub import hub_in_use
from tests.unit.data.inputs import EOS, MARKERS, byte_tokenizer, dump, json_lines, write, write_recipe, zstd
from trainer_core.data.making.initialize import init_data_line
from trainer_core.data.tokens.holdout import is_held_out
from trainer_core.errors import Refused

CASES = Path(__file__).parents[2] / "cases" / "A11"
CHAT = {"messages": "chat", "template": [MARKERS[0], "{content}", MARKERS[1]]}
LIST = {"list": "files", "field": "content", "join": "\n"}


def nested(values: list[Any], column: str, field: str) -> bytes:
    kind = pa.list_(pa.struct([("role", pa.string()), (field, pa.string())]))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({column: pa.array(values, kind)}), sink)
    return bytes(sink.getvalue())


BLANK = json_lines(["", " \n", None])
EMPTY: dict[str, tuple[str, bytes, Any]] = {
    "case zero rows": ("a.parquet", (CASES / "zero_rows.parquet").read_bytes(), "auto"),
    "case all null": ("a.parquet", (CASES / "all_null.parquet").read_bytes(), "auto"),
    "case blank": ("a.jsonl", (CASES / "only_blank.jsonl").read_bytes(), "auto"),
    "zero rows, named": ("a.parquet", (CASES / "zero_rows.parquet").read_bytes(), {"column": "text"}),
    "blank gz": ("a.jsonl.gz", gzip.compress(BLANK), {"column": "text"}),
    "blank zst": ("a.jsonl.zst", zstd(BLANK), {"column": "text"}),
    "no line, gz": ("a.jsonl.gz", gzip.compress(b""), {"column": "text"}),
    "no line, zst": ("a.jsonl.zst", zstd(b""), "auto"),
    "blank text": ("a.txt", b" \n\t", "auto"),
    "empty file": ("a.jsonl", b"", "auto"),
    "chats without content": ("a.parquet", nested([[], None, [{"role": "x"}]], "chat", "content"), CHAT),
    "no chats": ("a.parquet", nested([], "chat", "content"), CHAT),
    "chats of lines": ("a.jsonl", json.dumps({"chat": []}).encode() + b"\n", CHAT),
    "lists without text": ("a.parquet", nested([[], None, [{"content": ""}]], "files", "content"), LIST),
    "lists of lines": ("a.jsonl", json.dumps({"files": [{"content": " "}]}).encode() + b"\n", LIST),
}


def problems(root: Path, void: dict[str, Any], position: int) -> tuple[str, ...]:
    (root / "tokenizer.json").write_bytes(dump(byte_tokenizer()))
    for name in ("one", "two"):
        write(root / name / "a.jsonl", [f"{name} text {i}" for i in range(20)])
    order: list[tuple[str, Any]] = [(name, {"folder": name, "heldout": 0}) for name in ("one", "two")]
    order.insert(position, ("void", void))
    with pytest.raises(Refused) as refused:
        init_data_line(
            root / "line",
            recipe=write_recipe(root / "recipe.json", dict(order), {"one": 0.5, "two": 0.25, "void": 0.25}),
            tokenizer=root / "tokenizer.json",
            eos_id=EOS,
            cycle_tokens=100,
        )
    assert not (root / "line" / "data.json").exists()
    return refused.value.problems


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("kind", EMPTY)
def test_a_folder_without_documents(tmp_path: Path, kind: str, position: int) -> None:
    name, data, text = EMPTY[kind]
    (tmp_path / "void").mkdir()
    (tmp_path / "void" / name).write_bytes(data)
    void = {"folder": "void", "text": text, "markers": list(MARKERS)}
    (problem,) = problems(tmp_path, void, position)
    assert problem.startswith("source 'void': ") and name in problem
    assert "hold no documents" in problem or "matches no readable file" in problem


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_repository_without_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    with hub_in_use(monkeypatch) as hub:
        hub.commit("own/er", {f"data/{path.name}": path.read_bytes() for path in CASES.iterdir()})
        (problem,) = problems(tmp_path, {"repo": "own/er", "text": {"column": "text"}}, position)
    assert problem.startswith("source 'void': own/er at ") and "its 3 files hold no documents" in problem


def test_documents_that_are_all_held_out_are_none_to_train_on(tmp_path: Path) -> None:
    texts = [f"x{i}" for i in range(1000)]
    text = next(text for text in texts if is_held_out(text, identity="void", fraction=0.1))
    write(tmp_path / "void" / "a.jsonl", [text])
    (problem,) = problems(tmp_path, {"folder": "void", "heldout": 0.1}, 1)
    assert "hold no documents to train on" in problem
