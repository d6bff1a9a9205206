"""Files are whole or absent, and bad ones are named."""

import json
import os
import subprocess
import sys

import pytest

from trainer_core.errors import DiskFull, Refused
from trainer_core.line import files


def test_write_replaces_and_keeps_key_order(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"b": 1, "a": "ü"})
    assert path.read_text() == '{\n  "b": 1,\n  "a": "ü"\n}\n'
    files.write_json(path, {"a": 2})
    assert files.read_json(path) == {"a": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    files.write_json(path, {"a": 1})

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=r"a\.json: no space left"):
        files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"{", "line 1, column 2"),
        (b"[1]", "expected a JSON object"),
        (b"\xff", "not UTF-8"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1, "a": 2}', "stands twice"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_bad_json_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Refused, match=message) as refused:
        files.read_json(path)
    assert str(path) in str(refused.value)


def test_a_torn_line_spoils_only_itself(tmp_path):
    path = tmp_path / "rows.jsonl"
    files.append_jsonl(path, {"n": 1})
    with open(path, "ab") as file:
        file.write(b'{"n": 2, "x')
    assert files.read_jsonl(path) == [{"n": 1}]
    files.append_jsonl(path, {"n": 3})
    assert files.read_jsonl(path) == [{"n": 1}, {"n": 3}]


def test_canonical_json_does_not_depend_on_key_order():
    assert files.sha256_json({"b": [1, 2], "a": None}) == files.sha256_json({"a": None, "b": [1, 2]})
    assert files.sha256_json({"a": 1}) != files.sha256_json({"a": 1.5})


def test_many_processes_append_whole_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    code = (
        "import sys; from pathlib import Path; from trainer_core.line.files import append_jsonl\n"
        "for n in range(200): append_jsonl(Path(sys.argv[1]), {'who': sys.argv[2], 'n': n, 'pad': 'x' * 500})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), str(w)]) for w in range(3)]
    assert [w.wait() for w in writers] == [0, 0, 0]
    rows = files.read_jsonl(path)
    assert len(rows) == 600
    for who in "012":
        assert [row["n"] for row in rows if row["who"] == who] == list(range(200))
