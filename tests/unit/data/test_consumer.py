"""One training line per data line, whose past never changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer_core.data.consumer import read_consumer, register_consumer
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

LENGTHS: list[dict[str, int | None]] = [{"from": 0, "to": None, "length": 128}]
BATCH: list[dict[str, int | None]] = [{"from": 0, "to": None, "tokens": 1024}]


def put(root: Path, **changes: Any) -> None:
    register_consumer(root, **{"line": "/lines/a", "row_lengths": LENGTHS, "batch": BATCH, **changes})


def test_round_trip_and_repetition(tmp_path: Path) -> None:
    put(tmp_path)
    before = DataPaths(tmp_path).consumer.stat().st_mtime_ns
    put(tmp_path)
    assert DataPaths(tmp_path).consumer.stat().st_mtime_ns == before
    consumer = read_consumer(tmp_path)
    assert (consumer.line, consumer.row_length(10**12), consumer.batch(0)) == ("/lines/a", 128, 1024)
    assert consumer.row_length_end(0) is None


def test_nobody_registered_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="nstrain new"):
        read_consumer(tmp_path)


def test_a_second_line_is_refused_and_the_first_named(tmp_path: Path) -> None:
    put(tmp_path)
    with pytest.raises(Refused, match=r"already read by the training line /lines/a"):
        put(tmp_path, line="/lines/b")
    assert read_consumer(tmp_path).line == "/lines/a"


def test_schedules_grow_only_after_what_is_planned(tmp_path: Path) -> None:
    put(tmp_path)
    DataPaths(tmp_path).state.write_text(json.dumps({"start_token": 5000}))
    grown = [{"from": 0, "to": 5000, "tokens": 1024}, {"from": 5000, "to": None, "tokens": 2048}]
    early = [{"from": 0, "to": 4999, "tokens": 1024}, {"from": 4999, "to": None, "tokens": 2048}]
    with pytest.raises(Refused, match="after the 5,000 tokens"):
        put(tmp_path, batch=early)
    put(tmp_path, batch=grown)
    consumer = read_consumer(tmp_path)
    assert (consumer.batch(4999), consumer.batch(5000)) == (1024, 2048)
    for changed in (BATCH, [{**grown[0], "tokens": 512}, grown[1]], [grown[0], {**grown[1], "tokens": 4096}]):
        with pytest.raises(Refused, match="may only grow at its end"):
            put(tmp_path, batch=changed)


def test_all_problems_at_once(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        put(tmp_path, row_lengths=[], batch=[{"from": 3, "to": None, "tokens": 0}])
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "row_lengths",
        "batch[0].from",
        "batch[0]",
    ]
    assert not DataPaths(tmp_path).consumer.exists()
