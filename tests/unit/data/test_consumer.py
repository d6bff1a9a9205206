"""One training line per data line, whose past never changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.tiny_data import disk_line
from trainer_core.data.plan.consumer import check_consumer, growth_problems, read_consumer, register_consumer
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths

LENGTHS: list[dict[str, int | None]] = [{"from": 0, "to": None, "length": 128}]
LENGTHS_16: list[dict[str, int | None]] = [{"from": 0, "to": None, "length": 16}]
BATCH: list[dict[str, int | None]] = [{"from": 0, "to": None, "tokens": 1024}]


def put(root: Path, **changes: Any) -> None:
    register_consumer(root, **{"line": root / "a", "row_lengths": LENGTHS, "batch": BATCH, **changes})


def make_line(path: Path) -> None:
    """As far as the data line is concerned, a training line is a folder with a run.json."""
    path.mkdir()
    (path / "run.json").write_text("{}")


def test_round_trip_and_repetition(tmp_path: Path) -> None:
    make_line(tmp_path / "a")
    put(tmp_path)
    before = DataPaths(tmp_path).consumer.stat().st_mtime_ns
    put(tmp_path)
    assert DataPaths(tmp_path).consumer.stat().st_mtime_ns == before
    consumer = read_consumer(tmp_path)
    assert (consumer.row_length(10**12), consumer.batch(0)) == (128, 1024)
    assert consumer.line == str(tmp_path / "a")
    assert consumer.next_change(0) is None


def test_nobody_registered_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="nstrain new"):
        read_consumer(tmp_path)


def test_a_second_line_is_refused_and_the_first_named(tmp_path: Path) -> None:
    make_line(tmp_path / "a")
    put(tmp_path)
    with pytest.raises(Refused, match=r"already read by the training line .*/a;"):
        put(tmp_path, line=tmp_path / "b")
    assert read_consumer(tmp_path).line == str(tmp_path / "a")


def test_a_line_that_was_removed_may_be_made_anew_at_its_path(tmp_path: Path) -> None:
    work = disk_line(tmp_path, consumer=False)
    put(work, line=tmp_path / "a")
    CyclePreparer(work).tokenize(0)
    with pytest.raises(Refused, match=r"There is no line at .*/a now; one made there anew takes its place"):
        put(work, line=tmp_path / "b")
    put(work, line=tmp_path / "a")
    make_line(tmp_path / "a")
    with pytest.raises(Refused, match=r"--calibration-from [^)]*\)$"):
        put(work, line=tmp_path / "b")


def test_a_line_that_was_never_made_does_not_keep_the_data_line(tmp_path: Path) -> None:
    work = disk_line(tmp_path, consumer=False)
    put(work, line=tmp_path / "failed")
    put(work, line=tmp_path / "failed", batch=[{"from": 0, "to": None, "tokens": 128}])
    assert read_consumer(work).batch(0) == 128
    put(work, line=tmp_path / "b", row_lengths=LENGTHS_16)
    assert read_consumer(work).line == str(tmp_path / "b")
    CyclePreparer(work).tokenize(0)
    with pytest.raises(Refused, match="one consumer"):
        put(work, line=tmp_path / "c")
    with pytest.raises(Refused, match="may only grow"):
        put(work, line=tmp_path / "b", row_lengths=LENGTHS_16, batch=[{"from": 0, "to": None, "tokens": 512}])


def test_a_line_may_be_named_by_any_path_to_it(tmp_path: Path) -> None:
    make_line(tmp_path / "a")
    put(tmp_path)
    before = DataPaths(tmp_path).consumer.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    put(tmp_path, line=tmp_path / "link")
    put(tmp_path, line=tmp_path / "x" / ".." / "a")
    assert DataPaths(tmp_path).consumer.read_bytes() == before
    assert read_consumer(tmp_path).is_line(tmp_path / "link")


@pytest.mark.parametrize(
    ("row_length", "tokens", "words"),
    [
        (16, 128, []),
        (16, 2000, []),
        (16, 2016, ["a cycle of 2,000 tokens holds no update of 2,016 tokens"]),
        (2001, 4000, ["a cycle of 2,000 tokens holds no update of 2,001 tokens"]),
        (64, 32, ["an update of 32 tokens holds no row of 64"]),
        (4096, 32, ["an update of 32 tokens holds no row", "a cycle of 2,000 tokens holds no row of 4,096"]),
        (0, 32, ["at least 1"]),
    ],
)
def test_what_a_cycle_cannot_feed_is_known_before_anything_is_recorded(
    tmp_path: Path, row_length: int, tokens: int, words: list[str]
) -> None:
    work = disk_line(tmp_path, consumer=False)
    found = check_consumer(work, row_length=row_length, tokens_per_update=tokens)
    assert len(found) == len(words) and all(w in f for w, f in zip(words, found, strict=True))
    put(
        work,
        row_lengths=[{"from": 0, "to": None, "length": max(1, row_length)}],
        batch=[{"from": 0, "to": None, "tokens": tokens}],
    )
    if found and row_length:
        with pytest.raises(Refused, match="no whole update"):
            CyclePreparer(work).needed(0)
    else:
        assert CyclePreparer(work).needed(0)


DAMAGE: list[Any] = [
    "{",
    "[]",
    {},
    {"format": "consumer/1"},
    {"format": "consumer/1", "line": 7, "row_lengths": [], "batch": []},
    {"format": "consumer/1", "line": "/a", "row_lengths": 3, "batch": BATCH},
    {"format": "consumer/1", "line": "/a", "row_lengths": [{"from": 0, "to": None}], "batch": BATCH},
    {"format": "consumer/1", "line": "/a", "row_lengths": LENGTHS, "batch": []},
    {
        "format": "consumer/1",
        "line": "/a",
        "row_lengths": LENGTHS,
        "batch": [{"from": 0, "to": None, "tokens": "1024"}],
    },
]


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_record_is_refused_by_name(tmp_path: Path, content: Any) -> None:
    path = DataPaths(tmp_path).consumer
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    for call in (lambda: read_consumer(tmp_path), lambda: put(tmp_path)):
        with pytest.raises(Refused, match=r"consumer\.json: .*restore it from a backup"):
            call()


def test_schedules_grow_only_after_what_is_planned(tmp_path: Path) -> None:
    work = disk_line(tmp_path, consumer=False)
    put(work, row_lengths=LENGTHS_16)
    CyclePreparer(work).tokenize(0)
    grown = [{"from": 0, "to": 1024, "tokens": 1024}, {"from": 1024, "to": None, "tokens": 2048}]
    early = [{"from": 0, "to": 1023, "tokens": 1024}, {"from": 1023, "to": None, "tokens": 2048}]
    with pytest.raises(Refused, match="after the 1,024 tokens"):
        put(work, row_lengths=LENGTHS_16, batch=early)
    put(work, row_lengths=LENGTHS_16, batch=grown)
    consumer = read_consumer(work)
    assert (consumer.batch(1023), consumer.batch(1024)) == (1024, 2048)
    for changed in (BATCH, [{**grown[0], "tokens": 512}, grown[1]], [grown[0], {**grown[1], "tokens": 4096}]):
        (problem,) = growth_problems(work, line=work / "a", row_lengths=LENGTHS_16, batch=changed)
        with pytest.raises(Refused, match="may only grow at its end") as refused:
            put(work, row_lengths=LENGTHS_16, batch=changed)
        assert str(refused.value) == problem
    assert growth_problems(work, line=work / "a", row_lengths=LENGTHS_16, batch=grown) == []
    assert read_consumer(work) == consumer


def test_behind_a_closed_schedule_the_last_value_holds_for_what_is_planned(tmp_path: Path) -> None:
    work = disk_line(tmp_path, consumer=False)
    closed: list[dict[str, int | None]] = [{"from": 0, "to": 500, "tokens": 256}]
    put(work, row_lengths=LENGTHS_16, batch=closed)
    CyclePreparer(work).tokenize(0)  # 1,792 tokens, seven updates
    early = [*closed, {"from": 500, "to": None, "tokens": 512}]
    with pytest.raises(Refused, match="keep 256 up to 1,792 tokens"):
        put(work, row_lengths=LENGTHS_16, batch=early)
    late = [
        *closed,
        {"from": 500, "to": 1792, "tokens": 256},
        {"from": 1792, "to": None, "tokens": 64},
    ]
    put(work, row_lengths=LENGTHS_16, batch=late)
    assert read_consumer(work).batch(1792) == 64


def test_all_problems_at_once(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        put(tmp_path, row_lengths=[], batch=[{"from": 3, "to": None, "tokens": 0}])
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "row_lengths",
        "batch[0].from",
        "batch[0]",
    ]
    assert not DataPaths(tmp_path).consumer.exists()
