"""A run's way from the terminal to its start: its name, what is refused, and stops that overtake it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.flow_engine import run_flow
from prefect.states import AwaitingRetry, Completed, Running, Scheduled, State
from prefect.utilities.callables import parameter_schema

from deployments.follow import Submitted, end_run, submit, wait_final
from deployments.home import Home, ServerRecord, write_record
from tests.flows.test_trunk import trunk
from tests.tools.standin_line import make_line_with_data
from trainer_core.errors import Refused
from trainer_core.line.files import read_json
from trainer_core.line.identity import ProcessIdentity
from trainer_core.line.ledger import Ledger
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import read_stop, request_stop, want
from trainer_core.supervise.reading import newest_update
from trainer_core.supervise.record import SupervisorRecord, read_record
from trainer_core.supervise.record import write_record as write_supervisor


@pytest.fixture
def server(prefect_server: str, own_home: Path) -> Iterator[None]:
    """The tests' server as this home's own, with the deployment trunk/trunk."""
    port = urlsplit(prefect_server).port
    assert port is not None
    write_record(Home.default(), ServerRecord(port=port, server=ProcessIdentity.current()))
    deploy(parameter_schema(trunk).model_dump())
    yield


def deploy(form: dict[str, Any]) -> None:
    with get_client(sync_client=True) as client:
        client.create_deployment(
            client.create_flow(trunk),
            name="trunk",
            parameter_openapi_schema=form,
            enforce_parameter_schema=True,
        )


def read(run_id: str) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(run_id)  # type: ignore[arg-type]


def start(run: FlowRun) -> State[Any]:
    """What a worker's child does with a submitted run."""
    state: State[Any] = run_flow(trunk, flow_run=run, parameters=run.parameters, return_type="state")
    return state


def created(paths: LinePaths, *, seconds_from_now: float = 0.0) -> FlowRun:
    with get_client(sync_client=True) as client:
        at = Scheduled(scheduled_time=datetime.now(UTC) + timedelta(seconds=seconds_from_now))
        return client.create_flow_run(trunk, parameters={"line": str(paths.root)}, state=at)


def submitted(run: FlowRun) -> Submitted:
    return Submitted(id=str(run.id), name=run.name, url="")


@pytest.mark.usefixtures("prefect_server")
def test_a_stop_holds_for_a_run_that_was_submitted_before_it(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path, prepared=3)
    run = created(paths)
    assert request_stop(paths, by="nstrain stop") is None
    state = start(run)
    assert (state.name, state.type.value) == ("Stopped", "COMPLETED")
    assert "a stop was asked for after this run was submitted" in str(state.message)
    assert newest_update(paths) == 0 and read_record(paths).launches == 0
    assert start(created(paths)).name == "Finished", "a later start goes on"


@pytest.mark.usefixtures("prefect_server")
def test_a_run_that_was_scheduled_for_later_than_the_stop_starts(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path, prepared=3)
    run = created(paths, seconds_from_now=2.0)
    request_stop(paths, by="nstrain stop")
    assert start(run).name == "Finished"
    assert read_record(paths).run == str(run.id)


@pytest.mark.usefixtures("prefect_server")
def test_a_retry_by_hand_is_a_new_request(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path, prepared=3)
    run = created(paths)
    request_stop(paths, by="nstrain stop")
    assert start(run).name == "Stopped"
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    assert start(read(str(run.id))).name == "Finished"


@pytest.mark.usefixtures("server")
def test_a_run_has_one_name_from_the_beginning(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path, prepared=3)
    run = submit(paths.root, 1)
    assert run.name.startswith("trunk-trunk-")
    time.sleep(1.1)  # the name tells seconds
    found = read(run.id)
    assert found.name == run.name
    assert start(found).name == "Finished"
    assert read(run.id).name == run.name


@pytest.mark.usefixtures("server")
def test_what_cannot_run_is_refused_before_it_is_submitted(tmp_path: Path) -> None:
    paths = LinePaths(tmp_path / "trunk")
    with pytest.raises(Refused, match="--cycles 0: expected a whole number of at least 1"):
        submit(paths.root, 0)
    form = parameter_schema(trunk).model_dump()
    deploy(
        {
            **form,
            "required": ["line", "mood"],
            "properties": {**form["properties"], "mood": {"type": "string"}},
        }
    )
    with pytest.raises(Refused) as refused:
        submit(paths.root, 1)
    assert "mood" in str(refused.value)
    assert "{" not in str(refused.value) and "POST" not in str(refused.value)


@pytest.mark.usefixtures("server")
def test_ctrl_c_before_the_run_has_the_line_cancels_only_the_run(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path)
    run = created(paths)
    want(paths, "running", "the other run")
    with FileLock.acquire(paths.lock, role="trunk"):
        other = SupervisorRecord(state="running", supervisor=ProcessIdentity.current(), run="another")
        write_supervisor(paths, other)
        assert "cancelled" in end_run(submitted(run), paths.root)
        assert read_stop(paths) is None and read_json(paths.wanted)["wanted"] == "running"
        assert read(str(run.id)).state_type == "CANCELLED"
        mine = SupervisorRecord(state="running", supervisor=ProcessIdentity.current(), run=str(run.id))
        write_supervisor(paths, mine)
        assert "asked for a stop" in end_run(submitted(run), paths.root)
        stop = read_stop(paths)
    assert stop is not None and stop.by == "nstrain run"


@pytest.mark.usefixtures("server")
def test_who_follows_is_told_of_the_wait_and_of_new_updates_only(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path)
    row = {"tokens": 96, "seconds": {"train": 1.0}, "train/loss": 3.0}
    Ledger(paths.metrics, attempt=1).append("update", 1, row)
    run, said = submitted(created(paths)), []

    def live() -> None:
        with get_client(sync_client=True) as client:
            until_said("waiting")
            client.set_flow_run_state(run.id, Running(), force=True)  # type: ignore[arg-type]
            until_said("Running")
            Ledger(paths.metrics, attempt=2).append("update", 2, {**row, "tokens": 192})
            until_said("update 2")
            client.set_flow_run_state(run.id, Completed(name="Finished"), force=True)  # type: ignore[arg-type]

    def until_said(what: str) -> None:
        end = time.monotonic() + 30
        while not any(what in text for text in said) and time.monotonic() < end:
            time.sleep(0.05)

    thread = threading.Thread(target=live)
    thread.start()
    code = wait_final(run, paths.root, say=said.append)
    thread.join()
    assert code == 0
    assert said[0] == f"{run.name}: waiting for the worker to start the flow"
    assert said[1:] == [
        f"{run.name}: Running",
        "update 2: 192 tokens, loss 3.0000, 96 tokens/s",
        f"{run.name}: Finished",
    ], json.dumps(said)


def test_a_second_run_of_a_line_is_refused_naming_the_first(tmp_path: Path) -> None:
    paths = make_line_with_data(tmp_path)
    with FileLock.acquire(paths.lock, role="trunk"):
        with pytest.raises(Refused, match=f"being run by process {ProcessIdentity.current().pid}"):
            submit(paths.root, None)
        request_stop(paths, by="test")
        with pytest.raises(Refused, match="about to stop"):
            submit(paths.root, None)
