"""One pattern matcher for folders and repositories, and what is said about files that are left out."""

from pathlib import Path

import pytest

from tests.unit.data.inputs import write
from trainer_core.data.files.folder import list_folder
from trainer_core.data.files.listing import Glob, nearby, reasons, sort_out
from trainer_core.errors import Refused


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("**/*", ["a", "x/a", "x/y/a", ".x/_a"], []),
        ("*", ["a"], ["x/a"]),
        ("data/**", ["data/a", "data/x/y/a"], ["a", "other/data/a"]),
        ("data/**/*.parquet", ["data/a.parquet", "data/x/y/a.parquet"], ["a.parquet", "data/a.jsonl"]),
        ("data/*/part-?.jsonl", ["data/x/part-1.jsonl"], ["data/part-1.jsonl", "data/x/y/part-1.jsonl"]),
        ("**/en/**/[ab].txt", ["en/a.txt", "x/en/y/b.txt"], ["en/c.txt", "x/a.txt", "enx/a.txt"]),
        ("A/*", ["A/b"], ["a/b"]),
        ("a+b/(x).txt", ["a+b/(x).txt"], ["aab/x.txt"]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, yes: list[str], no: list[str]) -> None:
    glob = Glob(pattern)
    assert [glob.matches(path) for path in yes + no] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize("pattern", ["**/*", "*/x/*", "**/x/**", "a/*.jsonl", "**/b?.jsonl"])
def test_a_folder_is_walked_by_the_same_pattern(tmp_path: Path, pattern: str) -> None:
    paths = ["top.jsonl", "a/1.jsonl", "a/x/2.jsonl", "b/x/y/b3.jsonl", "c/b4.jsonl"]
    for path in paths:
        write(tmp_path / path, ["text"])
    assert list(list_folder(tmp_path, pattern).files) == sorted(filter(Glob(pattern).matches, paths))


def test_linked_folders_are_followed_and_loops_of_links_are_not(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "1.jsonl", ["text"])
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(corpus)
    assert list_folder(corpus, "**/*.jsonl").files == ("linked/1.jsonl",)


def test_left_out_files_are_listed_with_their_reason() -> None:
    listing = sort_out(
        {"a.jsonl": 9, "b.jsonl": 0, "c.csv": 4, "d/_SUCCESS": 0, "_e/f.jsonl": 3}, "**/*", "here"
    )
    assert listing.files == ("a.jsonl",)
    assert reasons(listing.ignored) == (
        "2 ignored (hidden: a part of its name begins with . or _): _e/f.jsonl, d/_SUCCESS; "
        "1 ignored (empty): b.jsonl; 1 ignored (no reader for this ending): c.csv"
    )
    with pytest.raises(
        Refused, match=r"here: '\*\*/\*' matches no readable file \(1 ignored \(empty\): b.jsonl\)"
    ):
        sort_out({"b.jsonl": 0}, "**/*", "here")


def test_a_pattern_that_matches_nothing_is_told_what_lies_near() -> None:
    paths = ["README.md", "data/Math-L1/a.parquet", "data/Math-L2-preview/b.parquet", "data/QA/c.parquet"]
    assert nearby(Glob("data/Math-L2/*.parquet"), paths) == (
        "'Math-L2' is not in data: there are Math-L2-preview/, Math-L1/, QA/"
    )
    assert nearby(Glob("dat/*.parquet"), paths).startswith("'dat' is not in its top folder: there are data/")
    assert nearby(Glob("data/QA/*.jsonl"), paths) == "'*.jsonl' is not in data/QA: there are c.parquet"
    assert nearby(Glob("data/QA/c.parquet/x"), paths).endswith("there are no files")
    assert nearby(Glob("*"), []) == "'*' is not in its top folder: there are no files"
