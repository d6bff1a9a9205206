"""Kinds of file and of column in one source: read right or refused by name, whatever the seed."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.data.inputs import EOS, byte_tokenizer, dump, write, write_recipe
from trainer_core.data.heldout.validation import make_heldout
from trainer_core.data.making.calibration import (
    SourceCalibration,
    calibration_to_json,
    load_calibration,
)
from trainer_core.data.making.initialize import UNFINISHED, init_data_line
from trainer_core.data.sources import TextRule, load_data_line
from trainer_core.data.text.read import check_file, iter_documents, resolve_rule
from trainer_core.data.tokens.holdout import is_held_out
from trainer_core.errors import Refused

SEEDS = range(4)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(dump(byte_tokenizer()))
    for name in "abcd":
        write(tmp_path / "mixed" / f"{name}.txt", [f"plain text {name} " * 20])
    write(tmp_path / "mixed" / "data.jsonl", [f"row {number} of the lines" for number in range(60)])
    return tmp_path


def init(corpus: Path, seed: int, work: str | None = None, **source: Any) -> Path:
    line = corpus / (work or f"line-{seed}")
    recipe = write_recipe(corpus / "r.json", {"m": {"folder": "mixed", "heldout": 0.2} | source})
    init_data_line(
        line, recipe=recipe, tokenizer=corpus / "tokenizer.json", eos_id=EOS, cycle_tokens=500, seed=seed
    )
    return line


@pytest.mark.parametrize("seed", SEEDS)
def test_a_column_is_found_beside_txt_files(corpus: Path, seed: int) -> None:
    line = init(corpus, seed)
    assert load_data_line(line).source("m").text == TextRule(kind="column", column="text")
    assert make_heldout(line)["sources"]["m"]["all"]["documents"] > 0


def test_a_column_whose_every_text_is_held_out_is_still_the_rule(corpus: Path) -> None:
    (corpus / "mixed" / "data.jsonl").unlink()
    held = [f"held {number}" for number in range(400)]
    held = [text for text in held if is_held_out(text, identity="mixed", fraction=0.2)]
    write(corpus / "mixed" / "data.jsonl", held)
    line = init(corpus, 0)
    assert load_data_line(line).source("m").text.column == "text"
    assert load_calibration(line)["m"].strata["all"].file.endswith(".txt")


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_without_text_beside_txt_files_are_refused_by_name(corpus: Path, seed: int) -> None:
    write(corpus / "mixed" / "data.jsonl", [None, ""])
    with pytest.raises(Refused, match=r"1 files with columns have no text .*data\.jsonl.*\"column\""):
        init(corpus, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_lines_under_another_key_are_refused_at_init(corpus: Path, seed: int) -> None:
    write(corpus / "mixed" / "other.jsonl.gz", [f"other {number}" for number in range(60)], "content")
    with pytest.raises(Refused, match=r"(other\.jsonl\.gz|data\.jsonl): no column '(text|content)'"):
        init(corpus, seed)


def test_a_measurement_of_one_stratum_does_not_make_the_rule_of_the_others(corpus: Path) -> None:
    """An interrupted init leaves what it measured; .txt files after the others do not change their rule."""
    write(corpus / "mixed" / "a" / "x.jsonl", [f"row {number}" for number in range(60)])
    write(corpus / "mixed" / "b" / "y.txt", ["plain text " * 20])
    rule = {"glob": "*/*", "stratum": {"level": 1}, "heldout": 0}
    first = init(corpus, 0, "whole", **rule)
    known = load_calibration(first)["m"]
    wrong = SourceCalibration(**{**vars(known), "text": TextRule(kind="whole")})
    (corpus / "again").mkdir()
    (corpus / "again" / UNFINISHED).write_text(json.dumps(calibration_to_json({"m": wrong})))
    again = init(corpus, 0, "again", **rule)
    assert load_data_line(again) == load_data_line(first) and load_calibration(again) == load_calibration(
        first
    )


def columns(path: Path, *named: tuple[str, list[Any]]) -> Path:
    pq.write_table(pa.Table.from_arrays([pa.array(v) for _, v in named], names=[n for n, _ in named]), path)
    return path


LONG = ["a long text that is read", "another long text that is read"]


def test_a_doubled_column_is_refused_by_name_where_it_is_the_text(tmp_path: Path) -> None:
    path = columns(
        tmp_path / "d.parquet", ("id", ["1", "2"]), ("text", LONG), ("text", LONG), ("l", [[1], [2]])
    )
    for rule in (
        TextRule(kind="column", column="text"),
        TextRule(kind="list", column="text"),
        TextRule(kind="messages", column="text", template=("{content}",)),
    ):
        for read in (
            lambda rule=rule: check_file(path, rule),
            lambda rule=rule: list(iter_documents(path, rule)),
        ):
            with pytest.raises(Refused, match=r"d\.parquet: column 'text' is there 2 times"):
                read()
    with pytest.raises(Refused, match=r"d\.parquet: column 'text' is there several times"):
        resolve_rule(path, TextRule())
    one = columns(tmp_path / "e.parquet", ("id", ["1", "2"]), ("text", [1, 2]), ("text", LONG))
    with pytest.raises(Refused, match=r"e\.parquet: column 'text' is there several times"):
        resolve_rule(one, TextRule())


def test_auto_passes_over_doubled_columns_that_are_not_the_text(tmp_path: Path) -> None:
    path = columns(
        tmp_path / "d.parquet", ("id", ["1", "2"]), ("id", [1, 2]), ("text", LONG), ("id", ["3", "4"])
    )
    assert resolve_rule(path, TextRule()) == TextRule(kind="column", column="text")
    assert list(iter_documents(path, TextRule())) == LONG


@pytest.mark.parametrize("size", [3, 500])
def test_lists_of_dictionaries_are_read_over_row_groups(tmp_path: Path, size: int) -> None:
    texts = [[f"text {number % 5}", f"other {number}"] for number in range(size * 3)]
    path = tmp_path / "l.parquet"
    kind = pa.list_(pa.dictionary(pa.int32(), pa.string()))
    pq.write_table(pa.table({"text": pa.array(texts, kind)}), path, row_group_size=size)
    assert list(iter_documents(path, TextRule(kind="list", column="text", join=" "))) == list(
        map(" ".join, texts)
    )


def test_what_arrow_cannot_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_implemented(*args: object, **kwargs: object) -> None:
        raise pa.ArrowNotImplementedError("Nested data conversions")

    path = columns(tmp_path / "d.parquet", ("text", LONG))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", not_implemented)
    with pytest.raises(Refused, match="cannot read columns stored like this") as error:
        list(iter_documents(path, TextRule(kind="column", column="text")))
    assert type(error.value) is Refused
