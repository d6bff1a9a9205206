"""The flow's own process is cancelled or killed: the trainer, in its own session, loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.flows.test_trunk import final_state
from tests.tools.standin_line import make_line_with_data
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.files import read_json, read_jsonl
from trainer_core.line.lock import held
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import read_stop
from trainer_core.supervise.reading import newest_update
from trainer_core.supervise.record import read_record

_RUN = """
import sys
sys.path.insert(0, sys.argv[2])
from tests.flows.test_trunk import trunk
trunk(sys.argv[1])
"""
_ROOT = Path(__file__).parents[2]


def until(condition: Callable[[], object], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


@pytest.fixture
def running(prefect_server: str, tmp_path: Path) -> Iterator[tuple[LinePaths, subprocess.Popen[bytes]]]:
    """A line in the middle of its first cycle, run by a flow in a process of its own."""
    paths = make_line_with_data(tmp_path, prepared=3, seconds=0.3)
    environment = {**os.environ, "PREFECT_API_URL": prefect_server, "PREFECT_LOGGING_TO_API_ENABLED": "false"}
    process = subprocess.Popen([sys.executable, "-c", _RUN, str(paths.root), str(_ROOT)], env=environment)
    try:
        until(lambda: newest_update(paths) >= 2)
        yield paths, process
    finally:
        process.kill()
        process.wait()


def test_a_signal_to_the_flow_leaves_a_checkpoint(
    running: tuple[LinePaths, subprocess.Popen[bytes]],
) -> None:
    paths, process = running
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    until(lambda: not held(paths.lock))
    last = list_checkpoints(paths)[-1]
    assert last.update == newest_update(paths) and last.update < 8
    assert read_stop(paths) is None
    assert (read_json(paths.wanted)["wanted"], read_json(paths.wanted)["by"]) == ("stopped", "cancel")
    assert [row["kind"] for row in read_jsonl(paths.events)][-1] == "stopped"
    assert final_state(paths).name == "Finished"
    assert [row["update"] for row in read_jsonl(paths.metrics)] == list(range(1, 25))


def test_a_killed_flow_is_followed_by_a_new_start(
    running: tuple[LinePaths, subprocess.Popen[bytes]],
) -> None:
    paths, process = running
    trainer = read_record(paths).trainer
    assert trainer is not None and os.getsid(trainer.pid) != os.getsid(process.pid)
    process.kill()
    process.wait()
    state = final_state(paths)
    assert state.name == "Finished"
    assert not trainer.alive()
    assert [row["update"] for row in read_jsonl(paths.metrics)] == list(range(1, 25)), "nothing was lost"
    record = read_record(paths)
    assert (record.launches, record.failures) == (2, 0)
