"""run-preparer: as far ahead as asked, the same bytes, ends on request, and says what cannot be done."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.tools.real_line import make_real_line
from tests.tools.tiny_data import published_bytes
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.data.prepare.retries import FAILING, delay_seconds
from trainer_core.line.files import read_jsonl
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.ops import preparer as verb
from trainer_core.ops.preparer import run_preparer


def quiet(message: str) -> None:
    """Nobody listens."""


def bytes_of(line: LinePaths) -> dict[str, bytes]:
    files = published_bytes(line.root.parent / "data")
    return {name: data for name, data in files.items() if "json" not in name}


def cycles_of(line: LinePaths) -> list[str]:
    return sorted(path.name for path in (line.root.parent / "data" / "cycles").iterdir())


def test_it_prepares_what_the_line_needs_now_and_no_more(tmp_path: Path) -> None:
    line = make_real_line(tmp_path / "line", cycles=4)
    code, message = run_preparer(line.root, cycles_ahead=1, follow=False, say=quiet)
    assert (code, cycles_of(line)) == (0, ["000000", "000001"]), message
    assert message.endswith("download of cycle 1, tokenize of cycle 1")
    assert run_preparer(line.root, follow=False, say=quiet) == (0, "everything is prepared already")
    data = line.root.parent / "data"
    assert run_preparer(data, cycles_ahead=9, cycles=3, follow=False, say=quiet)[0] == 0
    assert cycles_of(line) == ["000000", "000001", "000002"], "by the data line, and cycles 0 .. 2 in all"
    twin = make_real_line(tmp_path / "twin", cycles=4)
    by_hand = CyclePreparer(twin.root.parent / "data")
    for cycle in range(3):
        by_hand.download(cycle)
        by_hand.tokenize(cycle)
    assert bytes_of(twin) == bytes_of(line)


def test_it_deletes_what_a_crash_left(tmp_path: Path) -> None:
    line = make_real_line(tmp_path, cycles=3)
    assert run_preparer(line.root, follow=False, say=quiet)[0] == 0
    data = DataPaths(tmp_path / "data")
    shutil.copytree(data.cycle(1), data.cycles / "000007.deleted")
    code, message = run_preparer(line.root, follow=False, say=quiet)
    assert (code, message) == (0, "delete of cycle 7")
    assert cycles_of(line) == ["000000", "000001"]


def test_it_follows_until_it_is_asked_to_end(tmp_path: Path) -> None:
    line = make_real_line(tmp_path, cycles=3)
    code = "import sys, pathlib; from trainer_core.ops.preparer import run_preparer\n"
    code += "code, text = run_preparer(pathlib.Path(sys.argv[1])); print('END', text); sys.exit(code)"
    command = [sys.executable, "-c", code, str(line.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while not DataPaths(tmp_path / "data").manifest(1).exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert process.poll() is None, "it waits for the line to train"
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 10
    assert "END ended on request" in said
    assert cycles_of(line) == ["000000", "000001"]


def test_what_cannot_be_done_is_said_at_once(tmp_path: Path) -> None:
    line = make_real_line(tmp_path, cycles=3)
    for source in (tmp_path / "sources").rglob("*.jsonl"):
        source.write_text(source.read_text() + " ")
    code, message = run_preparer(line.root, say=quiet)
    assert code == 20 and "were pinned" in message
    code, message = run_preparer(tmp_path / "nothing", say=quiet)
    assert code == 20 and "run.json" in message
    code, message = run_preparer(line.root, cycles_ahead=-1, say=quiet)
    assert code == 20 and "cycles_ahead -1" in message


def test_a_step_that_breaks_off_is_tried_again_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make_real_line(tmp_path, cycles=1)
    monkeypatch.setattr(verb, "delay_seconds", lambda run_count: 0.0)
    failures = 0
    plain = os.fsync

    def broken(fd: int) -> None:
        nonlocal failures
        if failures < FAILING + 1 and "/cycles/" in os.readlink(f"/proc/self/fd/{fd}"):
            failures += 1
            raise OSError(5, "Input/output error")
        plain(fd)

    monkeypatch.setattr(os, "fsync", broken)
    assert run_preparer(line.root, follow=False, say=quiet)[0] == 0
    rows = read_jsonl(DataPaths(tmp_path / "data").events)
    events = [row for row in rows if row["kind"] == "preparer_failing"]
    assert [(row["cycle"], row["step"], row["failures"]) for row in events] == [(0, "tokenize", FAILING)]
    assert "Input/output error" in events[0]["message"]


def test_waits_between_tries_grow_to_ten_minutes() -> None:
    assert [delay_seconds(count) for count in (1, 2, 3, 4)] == [0, 10, 20, 40]
    assert delay_seconds(50) == 600


def test_in_a_thread_it_leaves_signals_alone(tmp_path: Path) -> None:
    line = make_real_line(tmp_path, cycles=1)
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(run_preparer(line.root, follow=False, say=quiet)[0])
    )
    thread.start()
    thread.join()
    assert found == [0]
