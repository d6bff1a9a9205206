"""Waiting for a hub: how long, announced once for all that wait, and over when the last is through."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.tools.hub import wait_until
from trainer_core.data.hub.waiting import Patience, Wait, delay, say_nothing
from trainer_core.errors import Leaving
from trainer_core.line.files import read_jsonl

AT_ONCE = Patience(first_seconds=0.001, longest_seconds=0.001, watchdog_seconds=0.0)


def test_waits_double_from_five_seconds_to_ten_minutes() -> None:
    waits = [delay(Patience(), number, None, 0.0) for number in range(9)]
    assert waits == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    assert delay(Patience(), 10_000, None, 0.0) == 600


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_jitter_only_adds_and_what_the_hub_asks_for_is_the_least(chance: float) -> None:
    for number in range(9):
        plain = delay(Patience(), number, None, 0.0)
        assert plain <= delay(Patience(), number, None, chance) <= 1.25 * plain
        for asked in (0.0, 7.0, 3600.0):
            least = max(plain, asked)
            assert least <= delay(Patience(), number, asked, chance) <= 1.25 * least


def waiting(events: Path | None, *, leaving: threading.Event | None = None) -> Wait:
    return Wait("r: f", patience=AT_ONCE, events=events, leaving=leaving, say=say_nothing)


def kinds(events: Path) -> list[str]:
    return [row["kind"] for row in read_jsonl(events)]


def test_several_that_wait_are_one_event_and_the_last_one_ends_it(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    with waiting(events) as first, waiting(events) as second:
        for _ in range(3):
            first.after("busy")
            second.after("busy")
        first.over()
        assert kinds(events) == ["hub_waiting"]
        second.over()
        second.over()
        assert kinds(events) == ["hub_waiting", "hub_back"]
        first.after("busy again")
        first.after("busy", progress=True)
        assert kinds(events) == ["hub_waiting", "hub_back", "hub_waiting", "hub_back", "hub_waiting"]


def test_one_that_gives_up_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    with waiting(events) as lasting:
        with waiting(events) as refused:
            refused.after("busy")
            lasting.after("busy")
        lasting.over()
    assert kinds(events) == ["hub_waiting", "hub_back"]


def test_a_short_wait_is_not_announced(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    short = Patience(first_seconds=0.001, watchdog_seconds=600.0)
    with Wait("r: f", patience=short, events=events, leaving=None, say=say_nothing) as wait:
        wait.after("busy")
        wait.over()
    assert not events.exists()


def test_a_long_wait_is_announced_while_it_lasts_and_left_on_request(tmp_path: Path) -> None:
    events, leaving = tmp_path / "events.jsonl", threading.Event()
    patience = Patience(watchdog_seconds=0.01)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            with Wait("r: f", patience=patience, events=events, leaving=leaving, say=say_nothing) as wait:
                wait.after("busy", retry_after=600.0)
        except Leaving as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: events.exists() and kinds(events) == ["hub_waiting"])
    leaving.set()
    thread.join()
    assert ended and kinds(events) == ["hub_waiting"]
