"""Delivery of events: to a real server, to a real command, and what happens when either is away."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.notify import Courier, run_command, uuid_of
from trainer_core.line.events import new_ulid, pending_events, record_event
from trainer_core.line.paths import LinePaths

NOWHERE = "http://127.0.0.1:1/api"


@pytest.fixture
def paths(tmp_path: Path) -> LinePaths:
    (tmp_path / "my line").mkdir()
    return LinePaths(tmp_path / "my line")


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def on_server(url: str, kind: str) -> list[dict[str, object]]:
    wanted = {"filter": {"event": {"name": [f"nstrain.line.{kind}"]}}}
    found: list[dict[str, object]] = httpx.post(f"{url}/events/filter", json=wanted).json()["events"]
    return found


def writer(tmp_path: Path, *, code: int = 0, seconds: float = 0.0) -> str:
    """A notify command that appends what it gets to `told.jsonl`, then waits, then ends with a code."""
    script = tmp_path / "notify me.py"
    script.write_text(
        f"import sys, time\nopen({str(tmp_path / 'told.jsonl')!r}, 'a').write(sys.stdin.read() + chr(10))\n"
        f"time.sleep({seconds})\nsys.exit({code})\n"
    )
    return f"{sys.executable} '{script}'"


def told(tmp_path: Path) -> list[dict[str, object]]:
    file = tmp_path / "told.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_the_ulid_is_the_events_id() -> None:
    assert uuid_of("0" * 25 + "1") == UUID(int=1)
    assert uuid_of("7" + "Z" * 25) == UUID(int=2**128 - 1)
    assert uuid_of(new_ulid()) != uuid_of(new_ulid())


def test_an_event_reaches_server_and_command_once(
    prefect_server: str, paths: LinePaths, tmp_path: Path
) -> None:
    row = record_event(paths.events, "test_delivered", "a cycle ended", update=7, cycle=1)
    courier = Courier(paths, writer(tmp_path), poll_seconds=0.1)
    until(lambda: not pending_events(paths))
    record_event(paths.events, "test_second", "another")
    courier.close(20)
    assert not pending_events(paths)
    (event,) = on_server(prefect_server, "test_delivered")
    assert event["id"] == str(uuid_of(row["id"]))
    assert event["resource"]["prefect.resource.id"] == "nstrain.line.my line"  # type: ignore[index]
    assert event["payload"] == row
    assert [item["kind"] for item in told(tmp_path)] == ["test_delivered", "test_second"]
    assert told(tmp_path)[0] == {"line": "my line", "path": str(paths.root), **row}
    assert courier.failures == 0


def test_a_dead_server_delays_and_does_not_hold_up_the_command(
    prefect_server: str, paths: LinePaths, tmp_path: Path
) -> None:
    record_event(paths.events, "test_delayed", "while the server is away")
    with temporary_settings(updates={PREFECT_API_URL: NOWHERE}):
        courier = Courier(paths, writer(tmp_path), poll_seconds=0.1)
        until(lambda: courier.failures >= 2)
        started = time.monotonic()
        courier.close(1.0)
        assert time.monotonic() - started < 10
    assert len(pending_events(paths)) == 1
    courier = Courier(paths, None, poll_seconds=0.1)
    courier.close(20)
    assert not pending_events(paths)
    assert len(on_server(prefect_server, "test_delayed")) == 1


def test_a_failing_command_is_tried_again_and_the_server_not(
    prefect_server: str, paths: LinePaths, tmp_path: Path
) -> None:
    record_event(paths.events, "test_failing", "x")
    courier = Courier(paths, writer(tmp_path, code=3), poll_seconds=0.1, longest_seconds=0.2)
    until(lambda: len(told(tmp_path)) >= 2)
    assert "exit code 3" in courier.last_error
    assert len(pending_events(paths)) == 1
    writer(tmp_path)
    until(lambda: not pending_events(paths))
    courier.close()
    assert len(on_server(prefect_server, "test_failing")) == 1


def test_a_hanging_command_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        run_command(writer(tmp_path, seconds=60), "{}", seconds=1.0)
    with pytest.raises(RuntimeError, match="exit code 4"):
        run_command(writer(tmp_path, code=4), "{}")
