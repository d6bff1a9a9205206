"""A real, small file system runs full under a preparer: it waits, says so once, and goes on with room."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.tools.small_disk import fill, small_disk
from tests.tools.tiny_data import disk_line, published_bytes
from trainer_core.data.prepare.disk_wait import DiskPatience, with_room
from trainer_core.data.prepare.files import Effort
from trainer_core.data.prepare.preparer import CyclePreparer
from trainer_core.errors import Leaving
from trainer_core.line.files import read_jsonl
from trainer_core.line.paths import DataPaths

QUICK = DiskPatience(first_seconds=0.05, longest_seconds=0.1, poll_seconds=0.01)
PARTS = ("cycles/", "manifests/", "state.json")


def prepare(work: Path, *cycles: int, **more: Any) -> None:
    effort = Effort(downloads=1, tokenizers=2, here_bytes=more.pop("here_bytes", 1 << 30))
    preparer = CyclePreparer(work, effort=effort, leaving=more.get("leaving"))
    for cycle in cycles:
        for step in (preparer.download, preparer.tokenize):
            with_room(preparer, cycle, lambda: step(cycle), patience=QUICK, **more)  # noqa: B023


def published(work: Path) -> dict[str, bytes]:
    return {name: data for name, data in published_bytes(work).items() if name.startswith(PARTS)}


def line_at(root: Path) -> Path:
    """The same line everywhere, with sources of their own outside of `root`."""
    shutil.rmtree(root, ignore_errors=True)
    return disk_line(root, cycle_tokens=40_000, docs=300, files=3)


@pytest.mark.parametrize(("leave", "here_bytes"), [(0, 1 << 30), (70_000, 1 << 30), (30_000, 0)])
def test_a_full_disk_is_waited_for(tmp_path: Path, leave: int, here_bytes: int) -> None:
    whole = line_at(tmp_path / "whole")
    prepare(whole, 0, 1)
    with small_disk(tmp_path / "disk", megabytes=4) as disk:
        work = line_at(disk / "line")
        prepare(work, 0)
        filler = fill(disk, leave=leave)
        said: list[str] = []
        helper = threading.Timer(0.5, filler.unlink)  # several tries later

        def hear(message: str) -> None:
            said.append(message)
            if len(said) == 1:
                helper.start()

        prepare(work, 1, say=hear, here_bytes=here_bytes)
        assert published(work) == published(whole)
        assert not [p for p in work.rglob("*") if p.name.endswith((".part", ".spool", ".tmp"))]
        rows = read_jsonl(DataPaths(work).events)
    kinds = [row["kind"] for row in rows if row["kind"].startswith("disk_")]
    assert kinds == ["disk_full", "disk_free"], kinds
    (full,) = [row for row in rows if row["kind"] == "disk_full"]
    assert full["cycle"] == 1 and full["needed_bytes"] > 0
    assert f"{full['needed_bytes']:,} bytes are needed" in full["message"]
    assert "it goes on by itself" in full["message"] and str(disk) in full["message"]


def test_a_wait_for_room_can_be_left(tmp_path: Path) -> None:
    leaving = threading.Event()
    with small_disk(tmp_path / "disk", megabytes=4) as disk:
        work = line_at(disk / "line")
        fill(disk, leave=50_000)
        with pytest.raises(Leaving, match="waiting for room"):
            prepare(work, 0, leaving=leaving, say=lambda message: leaving.set())
        assert not CyclePreparer(work).published(0)


def test_a_trained_cycle_leaves_a_full_disk(tmp_path: Path) -> None:
    """Its rows in the log do not fit before it has gone."""
    with small_disk(tmp_path / "disk", megabytes=4) as disk:
        work = line_at(disk / "line")
        prepare(work, 0)
        log = DataPaths(work).cycles_log
        filler = fill(disk, leave=0)
        page = b"\n" * (-log.stat().st_size % 4096)
        with suppress(OSError), open(log, "ab", buffering=0) as file:  # no row fits into its last page
            file.write(page)
        assert CyclePreparer(work).delete_cycle(0) is True
        assert filler.exists() and not list(DataPaths(work).cycles.iterdir())
        assert [row["kind"] for row in read_jsonl(log)][-2:] == ["consumed", "deleted"]
