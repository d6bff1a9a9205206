"""The helper of the benchmarks: who runs when, and what is counted."""

import threading
import time
from contextlib import closing

import pytest

from benchmarks.contest import OwnHeap, contest, cpu_seconds, table


def test_contenders_alternate_and_every_one_has_a_result() -> None:
    calls: list[str] = []
    best = contest({"ours": lambda: calls.append("ours"), "theirs": lambda: calls.append("theirs")}, rounds=3)
    assert calls == ["ours", "theirs"] * 3
    assert list(best) == ["ours", "theirs"]
    assert all(0 <= seconds < float("inf") for seconds in best.values())


def test_what_is_done_before_a_run_is_not_counted() -> None:
    calls: list[str] = []

    def before(name: str) -> None:
        calls.append(f"before {name}")
        end = cpu_seconds() + 0.2
        while cpu_seconds() < end:
            pass

    best = contest({"quick": lambda: calls.append("quick")}, rounds=2, before=before)
    assert calls == ["before quick", "quick"] * 2
    assert best["quick"] < 0.2


def test_cpu_seconds_only_rise() -> None:
    readings = [cpu_seconds() for _ in range(3)]
    assert readings == sorted(readings)


def test_a_table_lines_up() -> None:
    rows = [("a", 1), ("long one", 12.5)]
    assert table(("name", "x"), rows) == "name         x\na            1\nlong one  12.5"


def test_a_contender_with_a_heap_of_its_own_stays_in_one_thread_and_tells_its_seconds() -> None:
    threads: list[int] = []

    def call(argument: str) -> None:
        threads.append(threading.get_ident())
        end = time.process_time() + len(threads) * float(argument)
        while time.process_time() < end:
            pass

    with closing(OwnHeap(call)) as contender:
        first, second = contender("0.05"), contender("0.05")
    assert first >= 0.05 and second >= 0.1
    assert threads[0] == threads[1] != threading.get_ident()


def test_a_contender_that_fails_says_why() -> None:
    with closing(OwnHeap(lambda argument: {}["missing"])) as contender, pytest.raises(KeyError):
        contender("a round")
