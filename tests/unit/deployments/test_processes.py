"""Ending processes: recorded ones go, even stubborn ones; a stranger with a reused pid is never touched."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from deployments.processes import Descendant, descendants, end, start_detached
from trainer_core.line.identity import ProcessIdentity

SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPER


def _start(tmp_path: Path, code: str, *arguments: str) -> ProcessIdentity:
    log = tmp_path / "logs" / "process.log"
    command = [sys.executable, "-c", code, *arguments]
    identity = start_detached(command, log=log, env={}, cwd=tmp_path)
    while "ready" not in log.read_text():
        time.sleep(0.02)
    return identity


def test_a_detached_process_is_ended(tmp_path: Path) -> None:
    identity = _start(tmp_path, SLEEPER)
    assert identity.alive()
    assert end([identity], grace_seconds=10) == []
    assert not identity.alive()
    assert end([identity], grace_seconds=1) == []


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    identity = _start(tmp_path, STUBBORN)
    assert end([identity], grace_seconds=0.3) == []
    assert not identity.alive()


def test_a_stranger_with_the_same_pid_lives_on() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.DEVNULL)
    try:
        identity = ProcessIdentity.of(stranger.pid)
        assert identity is not None
        earlier = replace(identity, start_time="1")
        assert end([earlier], grace_seconds=0.1) == []
        assert identity.alive()
        other_boot = replace(identity, boot_id="another")
        assert end([other_boot], grace_seconds=0.1) == []
        assert identity.alive()
    finally:
        stranger.kill()
        stranger.wait()


def test_trainers_are_recognised_below_a_worker(tmp_path: Path) -> None:
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}, 'trainer_core.worker', '--line', 'L'],"
        " start_new_session=True)\ntime.sleep(600)"
    )
    identity = _start(tmp_path, parent)
    below = descendants(identity)
    try:
        assert [process.line for process in below] == [Path("L")]
    finally:
        end([identity, *(process.identity for process in below)], grace_seconds=10)


def test_other_commands_have_no_line() -> None:
    me = ProcessIdentity.current()
    assert Descendant(identity=me, command=("python", "-m", "prefect.engine")).line is None
    assert Descendant(identity=me, command=("python", "-m", "trainer_core.worker", "--line")).line is None
