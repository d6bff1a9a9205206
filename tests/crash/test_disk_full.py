"""A real, small file system runs full: exit code 32, nothing lost, and with room the line goes on."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.tools.faults import run_alone
from tests.tools.real_line import make_real_line, outcome_of_line
from tests.tools.small_disk import fill, small_disk
from trainer_core.errors import DiskFull
from trainer_core.line.checkpoints import list_checkpoints, verify
from trainer_core.ops.run import run_inline

torch.set_num_threads(1)


@pytest.fixture
def disk(tmp_path):
    """A file system of 8 MB."""
    with small_disk(tmp_path / "disk") as mount:
        yield mount


def run(paths) -> tuple[int, str]:
    try:
        return run_inline(paths.root, say=lambda text: None)
    except DiskFull as full:  # before the trainer exists: the line's lock could not be written
        return full.exit_code, str(full)


@pytest.mark.parametrize("leave", [0, 40_000, 300_000, 480_000])
def test_a_full_disk_stops_the_line_and_loses_nothing(disk, leave):
    root = disk / "line"
    paths = make_real_line(root, cycles=2)
    run_alone(lambda: run(paths))
    expected = outcome_of_line(paths)
    shutil.rmtree(root)
    paths = make_real_line(root, cycles=2)
    code, message = run_inline(paths.root, cycles=1, say=lambda text: None)
    assert code == 0, message
    filler = fill(disk, leave=leave)
    code, message = run(paths)
    assert code == 32, message
    assert "no space left" in message or "fit on the disk" in message
    points = list_checkpoints(paths)
    assert points[-1].update >= 8
    assert [problem for info in points for problem in verify(info.path)] == []
    filler.unlink()
    code, message = run(paths)
    assert code == 0, message
    assert outcome_of_line(paths) == expected
