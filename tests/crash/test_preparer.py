"""Kill a preparer at its n-th file operation, start it again: the finished cycle has the same bytes.

Once over folders and once over a hub, whose files are downloaded, tokenized and deleted on the way. CI takes
a sample of the operations; `make crash` (NSTRAIN_CRASH_ALL=1) takes every one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tools.faults import count_operations, run_alone, run_killed
from tests.tools.hub import hub_in_use
from tests.tools.hub_lines import QUICK, on_hub
from tests.tools.tiny_data import disk_line, published_bytes
from trainer_core.data.prepare.files import Effort
from trainer_core.data.prepare.preparer import CyclePreparer

ALL = os.environ.get("NSTRAIN_CRASH_ALL") == "1"
SAMPLE = {"folder": 8, "hub": 4}


@dataclass(frozen=True)
class Stage:
    """A data line whose first cycles are prepared; the next one, which needs new files, is the victim."""

    kind: str
    work: Path
    cycle: int

    @property
    def pristine(self) -> Path:
        return self.work.with_name("pristine")

    def reset(self) -> None:
        """Back to the beginning, at the same place."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.pristine, self.work)

    def prepare(self) -> None:
        """The whole life of the cycle, as the drivers do it."""
        preparer = self.preparer()
        preparer.download(self.cycle)
        preparer.tokenize(self.cycle)
        preparer.delete_cycle(self.cycle - 1)

    def preparer(self) -> CyclePreparer:
        effort = Effort(downloads=2, tokenizers=1, raw_bytes=8000)
        return CyclePreparer(self.work, effort=effort, patience=QUICK)


@pytest.fixture(params=["folder", "hub"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    work = disk_line(tmp_path, cycle_tokens=4000, files=8)
    with hub_in_use(monkeypatch) as hub:
        if request.param == "hub":
            on_hub(hub, work)
        first = Stage(request.param, work, 0).preparer()
        cycle = 0
        while cycle == 0 or not first.needed(cycle):
            first.download(cycle)
            first.tokenize(cycle)
            cycle += 1
        stage = Stage(request.param, work, cycle)
        shutil.copytree(stage.work, stage.pristine)
        yield stage


def points(stage: Stage, operations: int) -> list[int]:
    if ALL:
        return list(range(operations))
    step = operations / SAMPLE[stage.kind]
    return [int(step * k + step / 2) for k in range(SAMPLE[stage.kind])]


def test_killed_at_any_file_operation_the_cycle_has_the_same_bytes(stage: Stage) -> None:
    operations = count_operations(stage.prepare)
    expected = published_bytes(stage.work)
    assert operations > 60
    killed, tries = 0, points(stage, operations)
    for point in tries:
        stage.reset()
        # Downloads run on threads: a run may have a few operations more or fewer than the counted one.
        killed += run_killed(stage.prepare, point)
        run_alone(stage.prepare)
        assert published_bytes(stage.work) == expected, f"killed at operation {point}"
        leftovers = (".part", ".spool", ".tmp", ".deleted")
        left = [p.name for p in stage.work.rglob("*") if p.name.endswith(leftovers)]
        assert left == [], f"killed at operation {point}"
        incoming = stage.work / "incoming"
        assert not incoming.exists() or not [p for p in incoming.rglob("*") if p.is_file()], point
    assert killed >= 0.9 * len(tries)
    print(f"\n{stage.kind}: killed at {killed} of {operations} file operations: all equal")


def test_killed_again_and_again_the_cycle_is_finished_all_the_same(stage: Stage) -> None:
    operations = count_operations(stage.prepare)
    expected = published_bytes(stage.work)
    stage.reset()
    deaths = 0
    while run_killed(stage.prepare, max(10, 2 * operations // 3)):
        deaths += 1
        assert deaths < 100, "no progress between kills"
    assert deaths >= 1
    assert published_bytes(stage.work) == expected
