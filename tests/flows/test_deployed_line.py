"""One line's life on a real server, worker and trainer: everything that may happen to it, byte for byte.

The tests build on each other in their order. Whatever was done to the line, its last checkpoint must equal
the one of a twin that was trained in one piece without Prefect.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tools.host import BIN, Host, host_at, until
from tests.tools.real_line import SLOW, make_real_line, outcome_of_line
from trainer_core.line.checkpoints import list_checkpoints, newest
from trainer_core.line.files import read_json, read_jsonl
from trainer_core.line.ledger import live_rows
from trainer_core.line.lock import held
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.supervise.record import read_record
from trainer_core.telemetry.heartbeat import read_heartbeat

pytestmark = pytest.mark.slow

CYCLES = 8
OUTAGE_SECONDS = 30.0


@dataclass(frozen=True)
class Life:
    """The host, the line, and its twin in training."""

    host: Host
    paths: LinePaths
    twin: LinePaths
    twin_process: subprocess.Popen[bytes]

    @property
    def update(self) -> int:
        """Newest update of the ledger."""
        rows = live_rows(self.paths.metrics)
        return rows[-1]["update"] if rows else 0

    def train_until(self, update: int) -> None:
        """Wait until the running line has trained this update."""
        until(lambda: self.update >= update, 120, self.host.log_tail)

    def start(self) -> str:
        return self.host.start("trunk/trunk", line=str(self.paths.root))


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    root = tmp_path_factory.mktemp("host")
    twin = make_real_line(tmp_path_factory.mktemp("twin") / "line", cycles=CYCLES, size=SLOW)
    paths = make_real_line(root / "line", cycles=CYCLES, size=SLOW)
    with host_at(root, port=4310) as host:
        host.up()
        command = [str(BIN / "nstrain"), "run", str(twin.root), "--inline"]
        process = subprocess.Popen(command, env=host.environment(), stdout=subprocess.DEVNULL)
        try:
            yield Life(host, paths, twin, process)
        finally:
            process.kill()
            process.wait()


def test_a_stop_leaves_a_checkpoint_at_the_next_update(life: Life) -> None:
    run = life.start()
    life.train_until(1)
    stop = life.host.start("stop/stop", line=str(life.paths.root))
    state = life.host.wait(run)
    assert (state["type"], state["name"]) == ("COMPLETED", "Stopped"), state
    assert life.host.wait(stop)["type"] == "COMPLETED"
    last = newest(life.paths)
    assert last is not None
    assert last.update == life.update
    assert f"checkpoint u{last.update}" in state["message"]
    assert not life.paths.stop.exists()


def test_a_stop_at_a_cycle_end_is_exact_and_the_tasks_show_the_cycles(life: Life) -> None:
    run = life.start()
    life.train_until(life.update + 1)
    cycle = live_rows(life.paths.metrics)[-1]["cycle"] + 2
    life.host.start("stop/stop", line=str(life.paths.root), at_cycle_end=cycle)
    seen = _progress_while_training(life, run, f"train-c{cycle}")
    state = life.host.wait(run)
    assert state["name"] == "Stopped", state
    last = newest(life.paths)
    assert last is not None
    assert (last.update, last.kept) == ((cycle + 1) * SLOW.updates_per_cycle, "cycle-end")
    assert seen, "the train task was never Running with progress between 0 and 100"
    tasks = life.host.tasks(run)
    for kind in ("download", "tokenize", "train"):
        assert tasks[f"{kind}-c{cycle}"]["state_type"] == "COMPLETED", tasks.keys()
    assert tasks[f"delete-c{cycle - 1}"]["state_type"] == "COMPLETED"
    assert tasks["gpu-worker"]["run_count"] == 1


def _progress_while_training(life: Life, run: str, task: str) -> list[float]:
    """Values of the progress artifact seen while the task was Running; ends with the task."""
    seen: list[float] = []
    while life.host.state(run)["type"] not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
        found = life.host.tasks(run).get(task)
        running = found is not None and found["state_type"] == "RUNNING"
        if found is not None and not running and found["state_type"] == "COMPLETED":
            break
        artifacts = life.host.api.call("POST", "/artifacts/latest/filter", {"limit": 50})
        values = [float(a["data"]) for a in artifacts if a["type"] == "progress"]
        seen += [value for value in values if running and 0 < value < 100]
        time.sleep(0.3)
    return seen


def test_the_next_cycle_is_ready_before_it_is_needed(life: Life) -> None:
    data = DataPaths(life.paths.root.parent / "data")
    begun = {r["cycle"]: r["time"] for r in read_jsonl(data.events) if r["kind"] == "tokenize_started"}
    ended = {r["cycle"]: r["time"] for r in read_jsonl(life.paths.events) if r["kind"] == "cycle_completed"}
    updates = {r["update"]: r["time"] for r in live_rows(life.paths.metrics)}
    assert begun[1] < updates[SLOW.updates_per_cycle] <= ended[0]
    later = [r["seconds"] for r in live_rows(life.paths.metrics) if r["cycle"] > 0]
    waited = sum(seconds.get("awaiting_data", 0.0) for seconds in later)
    assert waited < 0.01 * sum(sum(seconds.values()) for seconds in later)


def test_a_cancelled_run_leaves_a_checkpoint_and_no_process(life: Life) -> None:
    run = life.start()
    begin = life.update
    life.train_until(begin + 5)
    trainer = read_record(life.paths).trainer
    assert trainer is not None
    assert trainer.alive()
    body = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    life.host.api.call("POST", f"/flow_runs/{run}/set_state", body)
    assert life.host.wait(run)["type"] == "CANCELLED"
    until(lambda: not held(life.paths.lock), 60)
    assert not trainer.alive()
    last = newest(life.paths)
    assert last is not None
    assert last.update == life.update >= begin + 5


@pytest.fixture(scope="module")
def last_run(life: Life) -> str:
    """The run that follows a killed flow process and goes on to the line's end."""
    run = life.start()
    life.train_until(life.update + 5)
    record = read_record(life.paths)
    assert record.supervisor is not None
    assert record.trainer is not None
    os.kill(record.supervisor.pid, signal.SIGKILL)
    again = life.start()
    assert life.host.wait(run)["type"] == "CRASHED"
    until(lambda: not record.trainer.alive(), 60)  # the orphan checkpoints and leaves by itself
    return again


def test_a_killed_flow_process_is_followed_by_a_new_start(life: Life, last_run: str) -> None:
    stopped = newest(life.paths)
    assert stopped is not None
    assert stopped.update >= life.update, "the orphan left a checkpoint of its last update"
    life.train_until(stopped.update + 3)


def test_a_second_start_is_refused(life: Life, last_run: str) -> None:
    second = life.host.wait(life.start())
    assert (second["type"], second["name"]) == ("FAILED", "Refused")
    assert "is being run by process" in second["message"]
    assert life.host.state(last_run)["type"] == "RUNNING"


def test_a_killed_trainer_and_a_dead_server_cost_nothing(life: Life, last_run: str) -> None:
    killed = _kill_in_training(life)
    attempts = len(_attempts(life))
    until(lambda: life.update >= killed and len(_attempts(life)) > attempts, 120, life.host.log_tail)
    server = life.host.record.server
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    at_outage, end = life.update, time.monotonic() + OUTAGE_SECONDS
    while time.monotonic() < end:
        time.sleep(0.5)
    assert life.update > at_outage, "training went on without a server"
    life.host.up()
    state = life.host.wait(last_run, seconds=240)
    assert (state["type"], state["name"]) == ("COMPLETED", "Finished"), state
    updates = [row["update"] for row in read_jsonl(life.paths.metrics) if row["kind"] == "update"]
    assert len(updates) > len(set(updates)), "no update was lost and replayed"
    assert any("SIGKILL" in str(row["message"]) for row in read_jsonl(life.paths.events))


def _attempts(life: Life) -> set[int]:
    return {
        row["attempt"] for row in read_jsonl(life.paths.metrics)[-3:] + live_rows(life.paths.metrics)[-60:]
    }


def _kill_in_training(life: Life) -> int:
    """SIGKILL the trainer in stage `training`, updates past its newest checkpoint; the update it had."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        beat, record, point = (
            read_heartbeat(life.paths.heartbeat),
            read_record(life.paths),
            newest(life.paths),
        )
        fresh = beat is not None and record.trainer is not None and beat.process == record.trainer
        if fresh and beat.stage == "training" and point is not None and life.update >= point.update + 2:
            os.kill(record.trainer.pid, signal.SIGKILL)
            beat = read_heartbeat(life.paths.heartbeat)
            assert beat is not None
            assert beat.stage == "training"
            return life.update
        time.sleep(0.02)
    raise AssertionError("the trainer was never seen in training")


def test_the_line_equals_its_twin(life: Life) -> None:
    assert life.twin_process.wait(timeout=300) == 0
    assert outcome_of_line(life.paths) == outcome_of_line(life.twin)
    kept = [point.update for point in list_checkpoints(life.paths) if point.kept]
    assert kept == [n * SLOW.updates_per_cycle for n in range(CYCLES + 1)]


def test_a_finished_line_answers_finished_and_changes_nothing(life: Life) -> None:
    def content() -> dict[Path, bytes]:
        root = life.paths.root.parent
        return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    before = content()
    watched = life.host.run(
        "prefect", "deployment", "run", "trunk", "-p", f"line={life.paths.root}", "--watch"
    )
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert "'Finished'" in watched.stdout
    assert content() == before
    assert read_json(life.paths.wanted)["wanted"] == "running"
