"""Downloads that hang, are killed, are left or find no room: nothing that arrived is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.tools.hub import hub_in_use, wait_until
from tests.tools.hub_case import LARGE, REPO, SMALL, HubCase, both_ways, size_of
from tests.tools.hub_lines import ALERT, QUICK
from tests.tools.small_disk import fill, small_disk
from trainer_core.data.hub import process as hub_process
from trainer_core.data.hub.api import fetch_to
from trainer_core.data.hub.transfer import part_of
from trainer_core.data.hub.waiting import Patience
from trainer_core.data.sources import SourceFile
from trainer_core.errors import DiskFull, Leaving
from trainer_core.line.files import read_jsonl


@pytest.fixture
def case(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubCase]:
    with hub_in_use(monkeypatch, redirect=getattr(request, "param", False)) as hub:
        yield HubCase(hub, tmp_path / "incoming")


def test_other_files_go_on_while_one_waits(case: HubCase) -> None:
    case.hub.plan(".*large", "status:429:retry-after=600*")
    leaving = threading.Event()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            case.fetch(leaving=leaving)
        except Leaving as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: case.said)
    assert case.fetch("data/small.jsonl") == SMALL
    leaving.set()
    thread.join()
    assert len(ended) == 1 and not case.target("data/large.parquet").exists()


def test_a_stalled_file_is_cut_off_and_gone_on_with_without_xet(case: HubCase) -> None:
    case.hub.plan("GET .*large", *(["ok"] if case.hub.redirect else []), "stall-after:100000:600")
    assert case.fetch(patience=ALERT) == LARGE
    assert case.gets()[-1] == "bytes=100000-"
    assert any("no byte for 0.5 s" in line for line in case.said)


def test_a_stall_before_the_first_byte_is_cut_off_too(case: HubCase) -> None:
    case.hub.plan("(HEAD|GET) .*large", "stall:600", "ok", "stall:600")
    assert case.fetch(patience=ALERT) == LARGE
    assert sum("no byte for 0.5 s; tried again" in line for line in case.said) >= 2


@both_ways
def test_a_hub_that_goes_away_is_announced_and_gone_on_with(case: HubCase, tmp_path: Path) -> None:
    case.hub.plan("GET .*large", *(["ok"] if case.hub.redirect else []), "stall-after:100000:600")
    events = tmp_path / "events.jsonl"
    done: list[bytes] = []
    # Long enough that the file is not cut off by the watchdog before the hub goes away.
    patience = Patience(first_seconds=0.01, longest_seconds=0.05, watchdog_seconds=2.0, poll_seconds=0.01)
    thread = threading.Thread(target=lambda: done.append(case.fetch(patience=patience, events=events)))
    thread.start()
    wait_until(lambda: size_of(part_of(case.target("data/large.parquet"))) == 100_000)
    case.hub.away()
    wait_until(lambda: read_jsonl(events))
    assert not done
    case.hub.back()
    thread.join()
    assert done == [LARGE] and case.gets()[-1] == "bytes=100000-"
    assert [row["kind"] for row in read_jsonl(events)] == ["hub_waiting", "hub_back"]


def test_a_killed_download_process_costs_nothing_that_arrived(case: HubCase) -> None:
    case.hub.plan("GET .*large", *(["ok"] if case.hub.redirect else []), "stall-after:200000:600")
    hub_process.end_idle()
    done: list[bytes] = []
    thread = threading.Thread(target=lambda: done.append(case.fetch()))
    thread.start()
    wait_until(lambda: size_of(part_of(case.target("data/large.parquet"))) == 200_000)
    for pid in _children():
        os.kill(pid, signal.SIGKILL)
    thread.join()
    assert done == [LARGE] and case.gets()[-1] == "bytes=200000-"


def test_leaving_keeps_what_arrived_and_the_next_start_goes_on(case: HubCase) -> None:
    case.hub.plan("GET .*large", *(["ok"] if case.hub.redirect else []), "stall-after:200000:600")
    leaving = threading.Event()
    ended: list[BaseException] = []

    def fetch() -> None:
        try:
            case.fetch(leaving=leaving)
        except Leaving as error:
            ended.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    part = part_of(case.target("data/large.parquet"))
    wait_until(lambda: size_of(part) == 200_000)
    leaving.set()
    thread.join()
    assert ended and size_of(part) == 200_000 and not case.target("data/large.parquet").exists()
    assert case.fetch() == LARGE
    assert case.gets()[-1] == "bytes=200000-" and case.leftovers() == []


def test_several_that_want_one_file_download_it_once(case: HubCase) -> None:
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(case.fetch())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [LARGE] * 4
    assert len(case.hub.requests("HEAD")) == 1 and case.leftovers() == []


def test_a_file_that_does_not_fit_is_not_begun(case: HubCase) -> None:
    vast = SourceFile(path="data/large.parquet", size=1 << 60, digest="0" * 64, stratum="all")
    with pytest.raises(DiskFull, match=r"large.parquet: no space left \(\d{19} bytes are missing"):
        fetch_to(REPO, case.commit, vast, case.target("data/large.parquet"), patience=QUICK)
    assert not case.hub.requests() and case.leftovers() == []


def test_a_disk_that_fills_up_in_the_middle_keeps_no_half_file(case: HubCase, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=2) as disk:
        case.folder = disk / "incoming"
        case.hub.plan("GET .*large", "stall-after:100000:600")
        ended: list[BaseException] = []

        def fetch() -> None:
            try:
                case.fetch(patience=ALERT)
            except DiskFull as error:
                ended.append(error)

        case.fetch("data/small.jsonl")
        thread = threading.Thread(target=fetch)
        thread.start()
        wait_until(lambda: size_of(part_of(case.target("data/large.parquet"))) == 100_000)
        fill(disk, leave=50_000)
        thread.join()
        assert "no space left" in str(ended[0]) and "free space and start again" in str(ended[0])
        assert case.leftovers() == [] and case.target("data/small.jsonl").read_bytes() == SMALL
        (disk / "filler").unlink()
        assert case.fetch() == LARGE


def test_a_full_disk_is_noticed_by_the_write_that_fails(case: HubCase, tmp_path: Path) -> None:
    """The free space that was asked for before the download may be gone when its bytes come."""
    with small_disk(tmp_path / "disk", megabytes=2) as disk:
        case.folder = disk / "incoming"
        case.hub.plan("HEAD .*large", "stall:1.5")
        ended: list[BaseException] = []

        def fetch() -> None:
            try:
                case.fetch()
            except DiskFull as error:
                ended.append(error)

        thread = threading.Thread(target=fetch)
        thread.start()
        wait_until(lambda: case.hub.requests("HEAD .*large"))
        fill(disk, leave=100_000)
        thread.join()
        assert "No space left on device" in str(ended[0]) and case.leftovers() == []


def test_a_killed_preparer_leaves_no_process_and_its_bytes_are_gone_on_with(case: HubCase) -> None:
    case.hub.plan("GET .*large", "stall-after:200000:600")
    target = case.target("data/large.parquet")
    file = case.files["data/large.parquet"]
    code = (
        "from pathlib import Path\n"
        "from trainer_core.data.hub.api import HubFile, fetch_to\n"
        f"file = HubFile(path={file.path!r}, size={file.size}, digest={file.digest!r})\n"
        f"fetch_to({REPO!r}, {case.commit!r}, file, Path({str(target)!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: size_of(part_of(target)) == 200_000)
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    wait_until(lambda: not child.is_running())
    assert case.fetch() == LARGE
    assert case.gets()[-1] == "bytes=200000-" and case.leftovers() == []


def _children() -> list[int]:
    """The download processes of this process."""
    found = psutil.Process().children()
    return [process.pid for process in found if "trainer_core.data.hub.child" in process.cmdline()]
