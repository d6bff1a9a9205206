"""Work on files: same bytes however it is spread, every file reported, a dead worker replaced or named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.tools.tiny_data import disk_line, published_bytes
from trainer_core.data.prepare.file_steps import FileStep
from trainer_core.data.prepare.files import Effort
from trainer_core.data.prepare.pool import DEATHS, WorkerDied
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.prepare.slots import Slots
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.errors import Leaving, Refused
from trainer_core.line.lock import held
from trainer_core.line.paths import DataPaths

SPREAD = Effort(downloads=2, tokenizers=2, here_bytes=0)
HERE = Effort(downloads=2, tokenizers=1)


def prepare(work: Path, effort: Effort, *cycles: int) -> list[FileStep]:
    steps: list[FileStep] = []
    preparer = CyclePreparer(work, effort=effort, report=steps.append)
    for cycle in cycles:
        preparer.download(cycle)
        preparer.tokenize(cycle)
    return steps


def workers() -> list[psutil.Process]:
    """Tokenize workers of this process that have not ended."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # ended, maybe not waited for yet
            if "trainer_core.data.prepare.worker" in " ".join(child.cmdline()):
                found.append(child)
    return found


def without_recipe(work: Path) -> dict[str, bytes]:
    """What must be the same; data.json names the folder."""
    return {name: data for name, data in published_bytes(work).items() if name != "data.json"}


def test_worker_processes_change_no_byte_and_every_file_is_reported(tmp_path: Path) -> None:
    here, spread = disk_line(tmp_path / "here"), disk_line(tmp_path / "spread")
    told = {name: prepare(*args, 0, 1) for name, args in (("h", (here, HERE)), ("s", (spread, SPREAD)))}
    assert without_recipe(spread) == without_recipe(here)
    assert workers() == []
    for steps in told.values():
        for step in ("download", "tokenize"):
            begun = [(s.source, s.path) for s in steps if (s.step, s.state) == (step, "started")]
            ended = [(s.source, s.path) for s in steps if (s.step, s.state) == (step, "done")]
            assert len(begun) >= 4 and sorted(begun) == sorted(ended)
        assert not [s for s in steps if s.state == "failed"]
        tokenized = {(s.source, s.path) for s in steps if s.step == "tokenize"}
        assert tokenized == {(s.source, s.path) for s in steps if s.step == "download"}


def test_a_wrong_file_is_reported_and_named_and_the_others_are_kept(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    wanted = CyclePreparer(work).needed(0)
    wrong = tmp_path / "sources" / wanted[0].source / wanted[0].path
    wrong.write_text(wrong.read_text() + " ")
    steps: list[FileStep] = []
    with pytest.raises(Refused, match=wanted[0].path) as refused:
        CyclePreparer(work, report=steps.append).download(0)
    assert len(refused.value.problems) == 1
    failed = [(s.path, s.message) for s in steps if s.state == "failed"]
    assert failed == [(wanted[0].path, str(refused.value))]
    assert len([s for s in steps if s.state == "done"]) == len(wanted) - 1
    with pytest.raises(Refused, match=wanted[0].path):
        CyclePreparer(work, effort=SPREAD).tokenize(0)
    assert workers() == []


def test_a_dead_worker_is_replaced(tmp_path: Path) -> None:
    work, whole = disk_line(tmp_path / "work"), disk_line(tmp_path / "whole")
    prepare(whole, HERE, 0)
    deaths: list[int] = []

    def kill_once(step: FileStep) -> None:
        if step.step == "tokenize" and step.state == "started" and not deaths:
            deaths.append(workers()[0].pid)
            os.kill(deaths[0], signal.SIGKILL)

    preparer = CyclePreparer(work, effort=SPREAD, report=kill_once)
    preparer.download(0)
    preparer.tokenize(0)
    assert len(deaths) == 1
    assert without_recipe(work) == without_recipe(whole)


def test_a_file_that_kills_every_worker_is_named(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    steps: list[FileStep] = []

    def kill(step: FileStep) -> None:
        steps.append(step)
        if step.step == "tokenize" and step.state == "started":
            for worker in workers():
                worker.kill()

    one = Effort(downloads=1, tokenizers=1, here_bytes=0)
    with pytest.raises(WorkerDied, match=rf"\w+/t\d/f\d\.jsonl: {DEATHS} tokenizer .* SIGKILL"):
        CyclePreparer(work, effort=one, report=kill).tokenize(0)
    assert steps[-1].state == "failed" and "SIGKILL" in steps[-1].message
    assert workers() == []
    prepare(work, one, 0)
    assert not [p for p in work.rglob("*") if p.name.endswith((".part", ".spool"))]


def test_workers_end_with_a_killed_preparer_and_the_line_is_free_only_then(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    code = (
        "import os, sys, signal, pathlib, psutil\n"
        "from trainer_core.data.prepare.preparer import CyclePreparer\n"
        "from trainer_core.data.prepare.files import Effort\n"
        "def die(step):\n"
        "    if (step.step, step.state) == ('tokenize', 'started'):\n"
        "        children = psutil.Process().children()\n"
        "        [child.suspend() for child in children]\n"
        "        print(*[child.pid for child in children], flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "effort = Effort(downloads=1, tokenizers=2, here_bytes=0)\n"
        "CyclePreparer(pathlib.Path(sys.argv[1]), effort=effort, report=die).tokenize(0)\n"
    )
    command = [sys.executable, "-c", code, str(work)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        orphans = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        assert process.wait() == -signal.SIGKILL
    assert orphans
    lock = DataPaths(work).lock
    assert held(lock), "a suspended worker may still write"
    for orphan in orphans:
        orphan.resume()
    _, alive = psutil.wait_procs(orphans, timeout=20)
    assert alive == []
    assert not held(lock)
    prepare(work, HERE, 0)
    assert CyclePreparer(work).published(0)


@pytest.mark.parametrize("effort", [HERE, SPREAD], ids=["here", "spread"])
def test_leaving_ends_the_work_and_keeps_what_is_finished(tmp_path: Path, effort: Effort) -> None:
    work, leaving = disk_line(tmp_path), threading.Event()
    steps: list[FileStep] = []

    def leave(step: FileStep) -> None:
        steps.append(step)
        if (step.step, step.state) == ("tokenize", "done"):
            leaving.set()

    with pytest.raises(Leaving):
        CyclePreparer(work, effort=effort, leaving=leaving, report=leave).tokenize(0)
    done = {(s.source, s.path) for s in steps if (s.step, s.state) == ("tokenize", "done")}
    assert done
    assert workers() == []
    left = {(ref.source, ref.path) for ref in CyclePreparer(work).needed(0)}
    assert left and not left & done
    prepare(work, HERE, 0)


def test_who_waits_for_the_line_or_for_a_slot_can_leave(tmp_path: Path) -> None:
    work, leaving = disk_line(tmp_path), threading.Event()
    leaving.set()
    preparer = CyclePreparer(work, leaving=leaving, effort=HERE)
    with preparer._locked(), pytest.raises(Leaving, match="waiting for the data line"):
        preparer.download(0)
    leaving.clear()
    with Slots("tokenize", 1).hold():
        threading.Timer(0.1, leaving.set).start()
        with pytest.raises(Leaving):
            preparer.tokenize(0)


def test_two_lines_share_the_slots_of_their_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = [disk_line(tmp_path / name) for name in ("a", "b")]
    inside, most, done = 0, 0, 0
    guard, plain = threading.Lock(), OpenFiles.tokenize

    def counted(files: OpenFiles, source: str, path: str) -> object:
        nonlocal inside, most, done
        with guard:
            inside, done = inside + 1, done + 1
            most = max(most, inside)
        facts = plain(files, source, path)
        time.sleep(0.01)
        with guard:
            inside -= 1
        return facts

    monkeypatch.setattr(OpenFiles, "tokenize", counted)
    threads = [threading.Thread(target=prepare, args=(work, HERE, 0)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(CyclePreparer(work).published(0) for work in works)
    assert most == 1 and done >= 8


def test_worker_processes_wait_for_a_slot_and_say_when_they_have_it(tmp_path: Path) -> None:
    work = disk_line(tmp_path)
    one = Effort(downloads=1, tokenizers=1, here_bytes=0)
    steps: list[FileStep] = []
    preparer = CyclePreparer(work, effort=one, report=steps.append)
    thread = threading.Thread(target=preparer.tokenize, args=(0,))
    with Slots("tokenize", 1).hold():
        thread.start()
        while not (found := workers()) or found[0].num_threads() < 2:
            time.sleep(0.02)
        time.sleep(1.0)  # a worker without a slot for longer than it looks for one
        assert [step for step in steps if step.step == "tokenize"] == []
    thread.join()
    assert preparer.published(0) and steps[-1].state == "done"
