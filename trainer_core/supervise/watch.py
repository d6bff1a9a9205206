"""Watching a running trainer: its end and its heartbeat. Writes nothing.

A trainer that is silent for longer than its line allows is ended, politely and then for good; the heartbeat
counts only if it comes from this very process, so an older trainer's file neither saves nor kills it.
Processes that a trainer leaves behind are ended with it: they would hold the device that the next one needs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from trainer_core.line.identity import ProcessIdentity, boot_id
from trainer_core.line.paths import LinePaths
from trainer_core.supervise.backoff import Policy
from trainer_core.supervise.outcome import Ending
from trainer_core.telemetry.heartbeat import read_heartbeat

CHILDREN_SECONDS = 2.0
"""Time that what a trainer left behind has after SIGTERM."""


def silent_seconds(path: Path, pid: int, *, since: float, now: float) -> float:
    """Seconds since process `pid` last gave a sign of life; its start at `since` counts as one."""
    beat = read_heartbeat(path)
    own = beat is not None and beat.process.pid == pid and beat.process.boot_id == boot_id()
    return now - max(since, beat.monotonic if beat is not None and own else since)


def watch(
    child: subprocess.Popen[bytes],
    paths: LinePaths,
    *,
    timeout_seconds: float,
    policy: Policy,
    tick: Callable[[], None] = lambda: None,
) -> Ending:
    """Wait for the child's end, ending it when its heartbeat is older than `timeout_seconds`.

    Of a child that leads a process group, the rest of the group is ended too.
    """
    ending = _until_end(child, paths, timeout_seconds=timeout_seconds, policy=policy, tick=tick)
    if not ending.unkillable:
        end_group(child.pid, policy=policy)
    return ending


def _until_end(
    child: subprocess.Popen[bytes],
    paths: LinePaths,
    *,
    timeout_seconds: float,
    policy: Policy,
    tick: Callable[[], None],
) -> Ending:
    started = time.monotonic()
    while True:
        try:
            return Ending(returncode=child.wait(policy.poll_seconds))
        except subprocess.TimeoutExpired:
            pass
        silence = silent_seconds(paths.heartbeat, child.pid, since=started, now=time.monotonic())
        if silence > timeout_seconds:
            return end_silent(child, silence, policy=policy)
        tick()


def end_silent(child: subprocess.Popen[bytes], silence: float, *, policy: Policy) -> Ending:
    """SIGTERM, then SIGKILL; the ending says that the trainer hung."""
    detail = f"no heartbeat for {silence:.0f} s"
    for send, grace in ((child.terminate, policy.term_seconds), (child.kill, policy.kill_seconds)):
        send()
        try:
            return Ending(returncode=child.wait(grace), hung=True, detail=detail)
        except subprocess.TimeoutExpired:
            continue
    return Ending(returncode=None, hung=True, unkillable=True, detail=detail)


def end_stranger(identity: ProcessIdentity, *, policy: Policy) -> bool:
    """End a process that is not our child, if it is still the one we knew; whether it is gone."""
    for number, grace in ((signal.SIGTERM, policy.term_seconds), (signal.SIGKILL, policy.kill_seconds)):
        if not identity.alive():
            return True
        try:
            os.kill(identity.pid, number)
        except ProcessLookupError:
            return True
        end = time.monotonic() + grace
        while identity.alive() and time.monotonic() < end:
            time.sleep(policy.poll_seconds)
    return not identity.alive()


def end_group(leader: int, *, policy: Policy) -> bool:
    """End what is left of the process group of a process that has ended; whether all of it is gone.

    As long as one of the group lives, no stranger is given the leader's id.
    """
    for number, grace in (
        (signal.SIGTERM, min(CHILDREN_SECONDS, policy.term_seconds)),
        (signal.SIGKILL, policy.kill_seconds),
    ):
        end = time.monotonic() + grace
        if not _members(leader):
            return True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)
        while _members(leader) and time.monotonic() < end:
            time.sleep(policy.poll_seconds)
    return not _members(leader)


def _members(group: int) -> list[int]:
    """Processes of a group that have not ended (one that waits for its parent has)."""
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found
