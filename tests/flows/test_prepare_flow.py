"""The prepare flow: a task run for every file while it is worked on, ahead of a line or beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TaskRun
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL
from prefect.states import State

from flows.prepare import prepare
from tests.tools.host import BIN
from tests.tools.real_line import make_real_line
from tests.tools.tiny_data import published_bytes
from trainer_core.line.files import read_json, read_jsonl
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.ops.preparer import run_preparer

pytestmark = pytest.mark.usefixtures("prefect_server")


def run(**parameters: Any) -> State[Any]:
    state: State[Any] = prepare(**parameters, return_state=True)
    return state


def task_runs(state: State[Any]) -> dict[str, TaskRun]:
    """Task runs by name, once the server has heard of all of them."""
    EventsWorker.drain_all()
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    end = time.monotonic() + 20
    with get_client(sync_client=True) as client:
        while True:
            found = client.read_task_runs(flow_run_filter=wanted, limit=200)
            if all(task.state and task.state.is_final() for task in found) or time.monotonic() > end:
                return {task.name: task for task in found}
            time.sleep(0.2)


def files_of(line: LinePaths, cycles: int) -> set[str]:
    """source/path of every file that the manifests of these cycles name."""
    data = DataPaths(line.root.parent / "data")
    pieces = [read_json(data.manifest(cycle))["pieces"] for cycle in range(cycles)]
    return {f"{name}/{docs['path']}" for found in pieces for name, rows in found.items() for docs in rows}


def test_every_file_is_a_task_run_and_the_bytes_are_those_of_run_preparer(tmp_path: Path) -> None:
    line, twin = make_real_line(tmp_path / "line"), make_real_line(tmp_path / "twin")
    state = run(line=str(line.root.parent / "data"), cycles_ahead=2, cycles=2)
    assert state.name == "Completed", state.message
    assert str(state.message).endswith("download of cycle 1, tokenize of cycle 1")
    runs = task_runs(state)
    shown = {
        step: {n.removeprefix(f"{step}-") for n in runs if n.startswith(f"{step}-") and "/" in n}
        for step in ("download", "tokenize")
    }
    assert shown["download"] == shown["tokenize"] >= files_of(line, 2)
    assert {name for name in runs if "/" not in name} == {
        f"{step}-c{cycle}" for step in ("download", "tokenize") for cycle in range(2)
    }
    assert {task.state_name for task in runs.values()} == {"Completed"}
    states = {name: (task.start_time, task.end_time) for name, task in runs.items()}
    assert all(began and ended and began < ended for began, ended in states.values())
    assert not any(task.tags for task in runs.values()), "a tagged task run would need the server to start"
    assert run_preparer(twin.root, cycles_ahead=2, cycles=2, follow=False, say=lambda text: None)[0] == 0
    made = [published_bytes(path.root.parent / "data") for path in (line, twin)]
    names = [name for name in made[0] if name.startswith(("cycles/", "open/"))]
    assert names and all(made[0][name] == made[1][name] for name in names)


def test_a_wrong_file_fails_under_its_name(tmp_path: Path) -> None:
    line = make_real_line(tmp_path)
    wrong = sorted((tmp_path / "sources" / "code" / "t0").iterdir())
    for path in wrong:
        path.write_text(path.read_text() + " ")
    state = run(line=str(line.root))
    assert (state.name, state.type.value) == ("Refused", "FAILED")
    runs = task_runs(state)
    failed = {name: task for name, task in runs.items() if task.state_name == "Failed"}
    assert {name for name in failed if "/" in name} <= {f"download-code/t0/{path.name}" for path in wrong}
    (one, *_) = failed.values()
    assert one.state is not None and "were pinned" in str(one.state.message)
    assert runs["download-c0"].state_name == "Refused"
    others = [task for name, task in runs.items() if "/" in name and name not in failed]
    assert others and {task.state_name for task in others} == {"Completed"}


def test_it_follows_a_line_to_its_end_and_its_events_are_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told.jsonl"
    script = tmp_path / "notify.py"
    script.write_text(f"import sys\nopen({str(told)!r}, 'a').write(sys.stdin.read() + chr(10))\n")
    (tmp_path / "host.json").write_text(json.dumps({"notify": f"{sys.executable} {script}"}))
    monkeypatch.setenv("NSTRAIN_HOST", str(tmp_path / "host.json"))
    line = make_real_line(tmp_path / "line", cycles=3)
    first = DataPaths(tmp_path / "line" / "data").manifest(0)
    codes: list[int] = []

    def train() -> None:
        while not first.exists():
            time.sleep(0.05)
        command = [str(BIN / "nstrain"), "run", str(line.root), "--inline"]
        codes.append(subprocess.run(command, stdout=subprocess.DEVNULL).returncode)
        if codes != [0]:
            line.run_json.unlink()  # or else the flow would wait for a line that does not train

    thread = threading.Thread(target=train)
    thread.start()
    state = run(line=str(line.root), follow=True)
    thread.join()
    assert codes == [0]
    assert state.name == "Completed", state.message
    data = DataPaths(tmp_path / "line" / "data")
    assert not list(data.cycles.iterdir())
    rows = {row["id"]: row for row in read_jsonl(data.events)}
    acked = {row["id"] for row in read_jsonl(data.acked)}
    assert acked >= {key for key, row in rows.items() if row["kind"] == "published" and row["cycle"] == 0}
    heard = [json.loads(text) for text in told.read_text().splitlines()]
    assert {row["id"] for row in heard} >= acked and heard[0]["line"] == "data"
    wanted = {"filter": {"event": {"name": ["nstrain.data.published"]}}}
    events = httpx.post(f"{PREFECT_API_URL.value()}/events/filter", json=wanted).json()["events"]
    assert events and events[0]["resource"]["prefect.resource.id"] == "nstrain.data.data"


def test_parameters_are_checked_and_a_missing_line_is_named(tmp_path: Path) -> None:
    state = run(line=str(tmp_path / "nothing"))
    assert state.name == "Refused" and "run.json" in str(state.message)
