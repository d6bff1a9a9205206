"""The status of a line, from its files alone."""

import json
import time

import pytest

from tests.tools.run_json import run_json
from trainer_core.line.events import record_event
from trainer_core.line.identity import ProcessIdentity
from trainer_core.line.ledger import Ledger
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import LinePaths
from trainer_core.line.status import goodput, line_status, tokens_per_second
from trainer_core.supervise.record import SupervisorRecord, write_record
from trainer_core.telemetry.heartbeat import Heartbeat, read_heartbeat
from trainer_core.train.checkpoint import write_checkpoint


@pytest.fixture
def paths(tmp_path):
    found = LinePaths(tmp_path)
    value = run_json(data=str(tmp_path / "data"), schedule=[{"from": 0, "to": 640, "kind": "constant"}])
    found.run_json.write_text(json.dumps(value))
    return found


def state(paths):
    return line_status(paths.root)["state"]


def update_row(tokens, **seconds):
    return {"tokens": tokens, "cycle": 0, "train/loss": 2.0, "seconds": seconds}


def test_a_new_line(paths):
    value = line_status(paths.root)
    assert (value["state"], value["update"], value["tokens"], value["loss"]) == ("new", 0, 0, None)
    assert value["tokens_per_second"] is None
    assert value["checkpoints"] == []


def test_speed_goodput_and_time_to_go(paths):
    ledger = Ledger(paths.metrics, attempt=1)
    for update in range(1, 6):
        ledger.append("update", update, update_row(64 * update, train=1.5, data=0.5))
    value = line_status(paths.root)
    assert value["tokens_per_second"] == 32.0
    assert value["goodput"] == {"train": 0.75, "data": 0.25}
    assert value["eta_seconds"] == (640 - 320) / 32.0
    assert tokens_per_second([]) is None
    assert goodput([]) == {}


def test_the_newest_validation_with_that_of_the_average(paths):
    readings = {"val_16/mix": 2.5, "ema/val_16/mix": 2.25}
    ledger = Ledger(paths.metrics, attempt=1)
    ledger.append("update", 1, update_row(64))
    ledger.append("validation", 1, {"time": 1.0, "tokens": 64, **readings})
    assert line_status(paths.root)["validation"] == readings


def test_the_stage_of_a_running_trainer(paths):
    Heartbeat(paths.heartbeat).beat("awaiting-data", 3)
    beat = read_heartbeat(paths.heartbeat)
    assert beat is not None
    assert (beat.update, beat.process) == (3, ProcessIdentity.current())
    assert state(paths) == "new", "nobody holds the line, so the heartbeat is an old one"
    with FileLock.acquire(paths.lock, role="test"):
        assert state(paths) == "awaiting-data"
        paths.stop.touch()
        assert state(paths) == "stopping"


def test_waits_of_the_supervisor(paths):
    with FileLock.acquire(paths.lock, role="test"):
        assert state(paths) == "starting"
        write_record(paths, SupervisorRecord(state="backoff", reason="crashed", since=time.time()))
        assert (state(paths), line_status(paths.root)["reason"]) == ("backoff", "crashed")


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["started", "stopped"], "stopped"),
        (["started", "disk_full"], "disk-full"),
        (["started", "stuck"], "stuck"),
        (["started", "cycle_completed"], "crashed"),
        (["started", "finished", "resumed"], "crashed"),
    ],
)
def test_how_a_line_at_rest_ended(paths, kinds, expected):
    for kind in kinds:
        record_event(paths.events, kind, "because")
    assert state(paths) == expected


def test_a_line_is_finished_when_its_last_checkpoint_is_there(paths):
    Ledger(paths.metrics, attempt=1).append("update", 10, update_row(640, train=1.0))
    record_event(paths.events, "resumed", "because")
    assert state(paths) == "crashed", "the checkpoint of the last update is missing"
    where = {"cycle": 1, "part": 0, "row": 0}
    write_checkpoint(paths, 10, {}, {"update": 10, "tokens": 640, "position": where, "kept": "end"})
    assert state(paths) == "finished"
