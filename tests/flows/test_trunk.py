"""The trunk flow on a real server with a stand-in trainer: restarts, stops, refusals, last states."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
)
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.events.worker import EventsWorker
from prefect.states import State

from flows.line import run_line
from flows.names import run_name
from tests.tools.standin_line import UPDATES_PER_CYCLE, make_line_with_data, standin_command
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.files import read_jsonl
from trainer_core.line.ledger import live_rows
from trainer_core.line.lock import FileLock, held
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.line.stop import request_stop
from trainer_core.supervise.reading import newest_update
from trainer_core.supervise.record import read_record

pytestmark = pytest.mark.usefixtures("prefect_server")


@flow(name="trunk", flow_run_name=run_name, persist_result=False)
def trunk(line: str, cycles: int | None = None) -> State[Any]:
    return run_line(line, cycles, by="trunk", command=standin_command)


def final_state(paths: LinePaths, cycles: int | None = None) -> State[Any]:
    state: State[Any] = trunk(str(paths.root), cycles, return_state=True)
    return state


def flow_run_of(state: State[Any]) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(state.state_details.flow_run_id)


def task_runs(state: State[Any]) -> dict[str, TaskRun]:
    """Task runs by name, once the server has heard of all of them."""
    EventsWorker.drain_all()
    run = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    end = time.monotonic() + 20
    with get_client(sync_client=True) as client:
        while True:
            found = client.read_task_runs(flow_run_filter=run, task_run_filter=TaskRunFilter(), limit=200)
            if all(task.state and task.state.is_final() for task in found) or time.monotonic() > end:
                return {task.name: task for task in found}
            time.sleep(0.2)


def artifact(key: str, state: State[Any]) -> Any:
    """Artifacts of this run by key; lines of other tests have the same name."""
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])), limit=200
        )
    return [item for item in found if item.flow_run_id == state.state_details.flow_run_id]


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def meanwhile() -> Any:
    """Runs a function beside the flow; what it raises fails the test."""
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def go(function: Callable[[], object]) -> None:
        def run() -> None:
            try:
                function()
            except BaseException as error:
                errors.append(error)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield go
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_three_cycles_with_a_killed_trainer(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path, seconds=0.15, acts=[{"attempt": 1, "update": 10, "do": "SIGKILL"}])
    state = final_state(paths)
    assert (state.name, state.type.value) == ("Finished", "COMPLETED")
    assert state.message == f"trained; checkpoint u{3 * UPDATES_PER_CYCLE}"
    runs = task_runs(state)
    expected = {f"{what}-c{c}" for what in ("download", "tokenize", "train", "delete") for c in range(3)}
    files = {name for name in runs if "/" in name}
    assert set(runs) - files == expected | {"check-line", "gpu-worker"}
    assert {name.split("-", 1)[0] for name in files} == {"download", "tokenize"}
    assert {task.state_type.value for task in runs.values() if task.state_type} == {"COMPLETED"}
    assert runs["gpu-worker"].run_count == 2
    assert {runs[f"train-c{c}"].run_count for c in range(3)} == {1}
    assert runs["gpu-worker"].state_name == "Finished"
    assert [row["update"] for row in live_rows(paths.metrics)] == list(range(1, 25))
    assert list((tmp_path / "data" / "cycles").iterdir()) == []
    assert len(list((tmp_path / "data" / "manifests").iterdir())) == 3
    run = flow_run_of(state)
    assert "line:trunk" in run.tags and run.name.startswith("trunk-trunk-")
    assert not any(task.tags for task in runs.values()), "a tagged task run would need the server to start"
    for home in (paths, DataPaths(tmp_path / "data")):
        acked = {row["id"] for row in read_jsonl(home.acked)}
        assert acked == {row["id"] for row in read_jsonl(home.events)}
    assert [item.data for item in artifact("trunk-progress", state)].count(100.0) == 3
    assert any("data:image/png;base64," in item.data for item in artifact("trunk-loss", state))


def test_the_next_cycle_is_prepared_while_one_trains(tmp_path: Path) -> None:
    second = tmp_path / "data" / "manifests" / "000001.json"
    paths = make_line_with_data(tmp_path, hold={"update": UPDATES_PER_CYCLE - 1, "until": str(second)})
    assert final_state(paths, 2).name == "Finished"
    rows = read_jsonl(tmp_path / "data" / "cycles.jsonl")
    started = {row["cycle"]: row["time"] for row in rows if row["kind"] == "tokenize_started"}
    last = [row["time"] for row in live_rows(paths.metrics) if row["cycle"] == 0][-1]
    assert started[1] < last
    assert second.stat().st_mtime < last, "the trainer waited for it before its last update"
    assert set(started) == {0, 1}, "no cycle beyond the asked ones is prepared"
    again = final_state(paths, 2)
    assert again.name == "Finished"
    assert set(task_runs(again)) == {"check-line"}, "a finished line starts nothing"


def test_stop_completes_the_run_and_the_next_one_goes_on(tmp_path: Path, meanwhile: Any) -> None:
    paths = make_line_with_data(tmp_path, prepared=3, seconds=0.2)

    def stop() -> None:
        until(lambda: newest_update(paths) >= 3)
        request_stop(paths, by="test")

    meanwhile(stop)
    state = final_state(paths)
    assert (state.name, state.type.value) == ("Stopped", "COMPLETED")
    last = list_checkpoints(paths)[-1].update
    assert 3 <= last < UPDATES_PER_CYCLE
    assert state.message == f"stop requested by test; checkpoint u{last}"
    runs = task_runs(state)
    assert runs["train-c0"].state_name == "Cancelled"
    assert runs["gpu-worker"].state_name == "Stopped"
    assert final_state(paths).name == "Finished"
    assert [row["update"] for row in read_jsonl(paths.metrics)] == list(range(1, 25))


def test_five_crashes_without_progress_are_stuck(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path, prepared=3, acts=[{"attempt": None, "update": 2, "do": 3}])
    state = final_state(paths)
    assert (state.name, state.type.value) == ("Stuck", "FAILED")
    assert "failure 5" in str(state.message)
    runs = task_runs(state)
    assert (runs["gpu-worker"].run_count, runs["gpu-worker"].state_name) == (5, "Stuck")


def test_a_line_in_use_is_refused(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path)
    with FileLock.acquire(paths.lock, role="inline run"):
        state = final_state(paths)
    assert (state.name, state.type.value) == ("Refused", "FAILED")
    assert f"line trunk is being run by process {os.getpid()}" in str(state.message)
    assert not paths.events.exists()


def test_every_problem_of_run_json_is_in_the_state(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path)
    text = paths.run_json.read_text()
    paths.run_json.write_text(text.replace('"seed": 0', '"seed": -1').replace('"rows": 4', '"rows": 0'))
    state = final_state(paths)
    assert state.name == "Refused"
    assert "seed" in str(state.message) and "rows" in str(state.message)


def test_data_that_cannot_be_prepared_ends_the_line_with_a_checkpoint(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path, seconds=0.05)
    sources = sorted((tmp_path / "sources").rglob("*.jsonl"))
    for source in sources:
        source.write_text(source.read_text() + " ")
    state = final_state(paths)
    assert (state.name, state.type.value) == ("Refused", "FAILED")
    assert str(sources[0].name) in str(state.message)
    record = read_record(paths)
    assert record.outcome is not None and record.outcome["status"] == "refused"
    assert not held(paths.lock)


def test_a_terminated_trainer_goes_on_and_nothing_is_counted(tmp_path: Path, meanwhile: Any) -> None:
    paths = make_line_with_data(tmp_path, prepared=3, seconds=0.2)

    def kill() -> None:
        until(lambda: newest_update(paths) >= 3)
        trainer = read_record(paths).trainer
        assert trainer is not None
        os.kill(trainer.pid, signal.SIGTERM)

    meanwhile(kill)
    assert final_state(paths).name == "Finished"
    assert read_record(paths).failures == 0
    assert [row["update"] for row in read_jsonl(paths.metrics)] == list(range(1, 25))


def test_cycles_are_prepared_again_when_a_damaged_checkpoint_is_set_aside(
    tmp_path: Path, meanwhile: Any
) -> None:
    released = tmp_path / "released"
    hold = {"update": 2 * UPDATES_PER_CYCLE + 1, "until": str(released)}
    paths = make_line_with_data(tmp_path, hold=hold)
    cycles = tmp_path / "data" / "cycles"

    def damage() -> None:
        until(lambda: newest_update(paths) == hold["update"] and not (cycles / "000001").exists())
        (paths.checkpoints / f"u{2 * UPDATES_PER_CYCLE}").rename(paths.checkpoints / "damaged")
        trainer = read_record(paths).trainer
        assert trainer is not None
        os.kill(trainer.pid, signal.SIGKILL)
        try:
            until((cycles / "000001").exists)
        except AssertionError:
            request_stop(paths, by="test")
            raise
        finally:
            released.touch()

    meanwhile(damage)
    state = final_state(paths)
    assert state.name == "Finished"
    names = [row["kind"] for row in read_jsonl(tmp_path / "data" / "cycles.jsonl") if row["cycle"] == 1]
    assert names.count("tokenize_started") <= 2
    assert list(cycles.iterdir()) == [], "what was prepared again is deleted again"
    assert [row["update"] for row in live_rows(paths.metrics)] == list(range(1, 25))
