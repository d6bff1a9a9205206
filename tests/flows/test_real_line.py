"""The trunk flow with the real trainer: a kill in the middle costs updates and not a byte of the result."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.trunk import trunk
from tests.tools.real_line import make_real_line, outcome_of_line
from trainer_core.line.checkpoints import newest
from trainer_core.line.files import read_jsonl
from trainer_core.line.ledger import live_rows
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.ops.run import run_inline
from trainer_core.supervise.reading import last_line, newest_update
from trainer_core.supervise.record import read_record
from trainer_core.telemetry.heartbeat import read_heartbeat

pytestmark = pytest.mark.usefixtures("prefect_server")


def kill_in_training(paths: LinePaths, update: int, seen: list[str]) -> None:
    """SIGKILL the trainer once its ledger has that many updates, and note the stage in which it was.

    It is halted first, so that it surely dies with an update that no checkpoint has, however quick it is.
    """
    end = time.monotonic() + 90
    while time.monotonic() < end:
        rows = paths.metrics.read_bytes().count(b'"kind": "update"') if paths.metrics.exists() else 0
        trainer = read_record(paths).trainer
        if rows >= update and trainer is not None and (process := _halted(trainer.pid)) is not None:
            beat, checkpoint = read_heartbeat(paths.heartbeat), newest(paths)
            saved = 0 if checkpoint is None else checkpoint.update
            if beat is not None and beat.stage == "training" and (newest_update(paths) or 0) > saved:
                process.kill()
                seen.append(beat.stage)
                return
            process.resume()
        time.sleep(0.001)


def _halted(pid: int) -> psutil.Process | None:
    """The process once SIGSTOP has halted it; None when it has ended."""
    try:
        process = psutil.Process(pid)
        process.suspend()
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
    except psutil.NoSuchProcess:
        return None
    return process


def test_a_killed_line_ends_with_the_same_bytes(tmp_path: Path) -> None:
    plain = make_real_line(tmp_path / "plain")
    state: Any = trunk(str(plain.root), return_state=True)
    assert (state.name, state.type.value) == ("Finished", "COMPLETED"), (
        state.message,
        last_line(plain.run_log),
    )
    killed = make_real_line(tmp_path / "killed")
    stages: list[str] = []
    thread = threading.Thread(target=kill_in_training, args=(killed, 11, stages))
    thread.start()
    state = trunk(str(killed.root), return_state=True)
    thread.join()
    assert state.name == "Finished", (state.message, last_line(killed.run_log))
    assert stages == ["training"]
    assert any("SIGKILL" in str(row["message"]) for row in read_jsonl(killed.events))
    rows = [row["update"] for row in read_jsonl(killed.metrics) if row["kind"] == "update"]
    assert len(rows) > len(set(rows)), "at least one update was lost and replayed"
    assert {row["attempt"] for row in live_rows(killed.metrics)} == {1, 2}
    assert outcome_of_line(killed) == outcome_of_line(plain)
    assert newest_update(killed) == 24


def test_a_damaged_checkpoint_at_a_cycle_end_costs_its_cycle_and_no_byte(tmp_path: Path) -> None:
    plain, damaged = make_real_line(tmp_path / "plain"), make_real_line(tmp_path / "damaged")
    assert run_inline(plain.root)[0] == 0
    state: Any = trunk(str(damaged.root), 2, return_state=True)
    assert state.name == "Finished", (state.message, last_line(damaged.run_log))
    last = newest(damaged)
    assert last is not None and last.cycle == 2
    assert not DataPaths(tmp_path / "damaged" / "data").cycle(1).exists()
    flip_byte(last.path / "params.safetensors")
    state = trunk(str(damaged.root), return_state=True)
    assert state.name == "Finished", (state.message, last_line(damaged.run_log))
    assert "checkpoint_damaged" in [row["kind"] for row in read_jsonl(damaged.events)]
    assert outcome_of_line(damaged) == outcome_of_line(plain)


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
