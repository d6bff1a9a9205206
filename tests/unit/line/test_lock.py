"""One holder at a time, told apart by pid, start time and boot."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from trainer_core.errors import Refused
from trainer_core.line.identity import ProcessIdentity
from trainer_core.line.lock import Busy, FileLock, held, holder
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import clear_stop, read_stop, request_stop

HOLD = (
    "import sys, time; from pathlib import Path; from trainer_core.line.lock import FileLock\n"
    "lock = FileLock.acquire(Path(sys.argv[1]), role='test'); print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock."""
    path = tmp_path / "lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield path, process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_holder_is_refused_by_name(other):
    path, process = other
    with pytest.raises(Busy, match=f"process {process.pid} \\(test\\) since") as busy:
        FileLock.acquire(path, role="me")
    assert busy.value.holder == ProcessIdentity.of(process.pid)
    assert held(path)


def test_whoever_may_only_read_is_told_whether_it_is_held(other, monkeypatch):
    """Another user's `nstrain status` was refused."""
    path, _ = other

    def read_only(name, flags, *rest):
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(13, "Permission denied", str(name))
        return opened(name, flags, *rest)

    opened = os.open
    monkeypatch.setattr(os, "open", read_only)
    assert held(path)


def test_the_kernel_frees_the_lock_of_a_killed_process(other):
    path, process = other
    process.send_signal(signal.SIGKILL)
    process.wait()
    with FileLock.acquire(path, role="me"):
        assert holder(path) == ProcessIdentity.current()
    assert not held(path)
    assert holder(path) is None


def test_a_descriptor_handed_to_a_child_holds_the_lock_until_the_child_ends(tmp_path):
    path = tmp_path / "lock"
    lock = FileLock.acquire(path, role="parent")
    child = subprocess.Popen(["sleep", "60"], pass_fds=(lock.fd,))
    try:
        lock.close()
        assert held(path)
    finally:
        child.kill()
        child.wait()
    assert not held(path)


def test_a_live_holders_record_counts_even_when_flock_excludes_nobody(tmp_path):
    path = tmp_path / "lock"
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        identity = ProcessIdentity.of(sleeper.pid)
        assert identity is not None
        path.write_text(json.dumps({**identity.to_dict(), "role": "far away", "since": time.time()}))
        with pytest.raises(Busy, match="far away"):
            FileLock.acquire(path, role="me")
        # The same pid with another start time is a stranger that reuses it: no reason to refuse.
        path.write_text(json.dumps({**identity.to_dict(), "start_time": "1", "role": "old", "since": 1.0}))
        FileLock.acquire(path, role="me").release()
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_zombie_is_not_alive():
    child = os.fork()
    if child == 0:
        os._exit(0)
    deadline = time.monotonic() + 10
    while ProcessIdentity.of(child) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ProcessIdentity.of(child) is None
    os.waitpid(child, 0)


def test_stop_needs_a_running_line(tmp_path):
    paths = LinePaths(tmp_path)
    paths.run_json.write_text("{}")
    assert request_stop(paths, by="test") is None
    assert not paths.stop.exists()
    assert json.loads(paths.wanted.read_text())["wanted"] == "stopped"
    with FileLock.acquire(paths.lock, role="test"):
        request = request_stop(paths, at_cycle_end=2, by="test")
        assert request is not None
        assert read_stop(paths) == request
    clear_stop(paths)
    assert read_stop(paths) is None


def test_an_empty_stop_file_means_now(tmp_path):
    paths = LinePaths(tmp_path)
    paths.stop.touch()
    request = read_stop(paths)
    assert request is not None
    assert request.due(update=7, cycles_done=0, at_cycle_end=False)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"time": 1' + b"0" * 400 + b"}", b"\xff", None])
def test_whatever_stands_in_stop_is_read(tmp_path, content):
    paths = LinePaths(tmp_path)
    if content is None:
        paths.stop.mkdir()
    else:
        paths.stop.write_bytes(content)
    os.utime(paths.stop, (1000.0, 1000.0))
    request = read_stop(paths)
    assert request is not None
    assert request.due(update=0, cycles_done=0, at_cycle_end=False)
    assert request.time == 1000.0
    clear_stop(paths)
    assert not paths.stop.exists()


def test_bounds_of_a_stop_are_checked(tmp_path):
    paths = LinePaths(tmp_path)
    paths.run_json.write_text("{}")
    with pytest.raises(Refused) as refused:
        request_stop(paths, at_cycle_end=-1, at_update=-2, by="test")
    assert len(refused.value.problems) == 3
    assert not paths.wanted.exists()


@pytest.mark.parametrize(
    ("where", "due"),
    [
        ({"update": 3, "cycles_done": 1, "at_cycle_end": False}, False),
        ({"update": 3, "cycles_done": 1, "at_cycle_end": True}, False),
        ({"update": 9, "cycles_done": 2, "at_cycle_end": True}, True),
        ({"update": 9, "cycles_done": 3, "at_cycle_end": False}, False),
    ],
)
def test_a_stop_at_a_cycle_end_waits_for_it(tmp_path, where, due):
    paths = LinePaths(tmp_path)
    paths.stop.write_text('{"at_cycle_end": 1}')
    request = read_stop(paths)
    assert request is not None
    assert request.due(**where) is due
