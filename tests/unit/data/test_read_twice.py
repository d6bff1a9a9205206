"""No text is read twice: by two sources, or by one under two names, whatever the names are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.inputs import EOS, MARKERS, byte_tokenizer, dump, write, write_recipe
from trainer_core.data.making.init_report import InitReport
from trainer_core.data.making.initialize import init_data_line
from trainer_core.errors import Refused


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(dump(byte_tokenizer()))
    write(tmp_path / "a" / "x.jsonl", [f"document {i}" for i in range(30)])
    write(tmp_path / "a" / "y.jsonl", [f"other document {i}" for i in range(30)])
    return tmp_path


def init(root: Path, **sources: dict[str, Any]) -> InitReport:
    named = {name: {"id": name, "heldout": 0} | source for name, source in sources.items()}
    return init_data_line(
        root / "line",
        recipe=write_recipe(root / "recipe.json", named),
        tokenizer=root / "tokenizer.json",
        eos_id=EOS,
        cycle_tokens=30,
    )


def refused(root: Path, **sources: dict[str, Any]) -> str:
    with pytest.raises(Refused) as error:
        init(root, **sources)
    (problem,) = error.value.problems
    return problem


def rows(path: Path, values: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def test_plain_text_is_the_same_under_every_rule(root: Path) -> None:
    for i in range(5):
        write(root / "c" / f"{i}.txt", [f"text number {i}"])
    write(root / "c" / "z.jsonl", ["a line"])
    problem = refused(
        root,
        mixed={"folder": "c", "text": {"column": "text"}},
        plain={"folder": "c", "glob": "*.txt"},
    )
    assert "source 'plain': 5 of its files are those of source 'mixed'" in problem and "0.txt" in problem


@pytest.mark.parametrize("kind", ["file", "folder", "hard link"])
def test_a_link_is_the_file_that_it_leads_to(root: Path, kind: str) -> None:
    (root / "b").mkdir()
    if kind == "file":
        (root / "b" / "link.jsonl").symlink_to("../a/x.jsonl")
    elif kind == "folder":
        (root / "b" / "sub").symlink_to("../a")
    else:
        os.link(root / "a" / "x.jsonl", root / "b" / "hard.jsonl")
    problem = refused(root, first={"folder": "a"}, second={"folder": "b"})
    assert "those of source 'first'" in problem and ".jsonl" in problem


def test_a_link_beside_its_file_in_one_source_is_refused_by_name(root: Path) -> None:
    (root / "a" / "link.jsonl").symlink_to("x.jsonl")
    (root / "a" / "sub").mkdir()
    os.link(root / "a" / "y.jsonl", root / "a" / "sub" / "hard.jsonl")
    problem = refused(root, first={"folder": "a"})
    assert "source 'first': 2 of its files" in problem
    assert "link.jsonl is x.jsonl, sub/hard.jsonl is y.jsonl" in problem
    assert "remove" in problem


def test_links_that_lead_to_nothing_else_that_is_read_work(root: Path) -> None:
    write(root / "elsewhere" / "1.jsonl", ["text 1"])
    write(root / "elsewhere" / "2.jsonl", ["text 2"])
    (root / "b").mkdir()
    (root / "b" / "linked").symlink_to("../elsewhere")
    (root / "b" / "around").symlink_to(".")
    (root / "c").mkdir()
    (root / "c" / "z.jsonl").symlink_to("../a/x.jsonl")
    report = init(
        root,
        a={"folder": "a", "glob": "y*"},
        b={"folder": "b"},
        c={"folder": "c", "text": {"column": "text"}},
    )
    assert [len(spec.files) for spec in report.line.sources] == [1, 2, 1]


def test_what_is_read_counts_and_not_how_it_is_joined(root: Path) -> None:
    parts = {"p": [f"part {i}" for i in range(9)], "q": [{"a": "one", "content": "two"}]}
    rows(root / "lists" / "l.jsonl", [parts] * 9)
    one, two = ({"folder": "lists", "text": {"list": "p", "field": None, "join": join}} for join in "\n ")
    assert "those of source 'one'" in refused(root, one=one, two=two)
    fields = {
        name: {"folder": "lists", "text": {"list": "q", "field": name, "join": " "}}
        for name in ("a", "content")
    }
    init(root, p=one, **fields)


def test_a_chat_is_the_same_under_every_template(root: Path) -> None:
    rows(
        root / "chats" / "c.jsonl", [{"m": [{"role": "user", "content": f"question {i}"}]} for i in range(9)]
    )
    plain = {"messages": "m", "template": ["{role}: {content}", "\n"]}
    marked = {"messages": "m", "template": [MARKERS[0], "{content}", MARKERS[1]]}
    as_list = {"list": "m", "field": "content", "join": "\n"}
    for rule in (marked, as_list):
        problem = refused(
            root,
            one={"folder": "chats", "text": plain},
            two={"folder": "chats", "text": rule, "markers": list(MARKERS)},
        )
        assert "those of source 'one'" in problem


def test_a_file_read_whole_and_by_column_is_read_twice(root: Path) -> None:
    (root / "b").mkdir()
    (root / "b" / "x.txt").symlink_to("../a/x.jsonl")
    for first, second in (("a", "b"), ("b", "a")):
        assert "those of source 'one'" in refused(root, one={"folder": first}, two={"folder": second})
