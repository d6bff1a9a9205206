"""Kill an inline line at its n-th file operation, start it again, compare every byte with a line left alone.

CI takes a sample of the operations; `make crash` (NSTRAIN_CRASH_ALL=1) takes every one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.tools.faults import count_operations, run_alone, run_killed
from tests.tools.real_line import make_real_line, outcome_of_line
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.paths import LinePaths
from trainer_core.ops.run import run_inline

torch.set_num_threads(1)

ALL = os.environ.get("NSTRAIN_CRASH_ALL") == "1"
AVERAGE = 'ema={"horizon_tokens":400,"from_tokens":200}'
TENSORS = {"params", "exp_avg", "exp_avg_sq"}
KINDS = {"fp32": (24, (), TENSORS), "bf16": (5, ("precision=bf16", AVERAGE), TENSORS | {"ema"})}
"""Operations that CI takes (bf16 may be emulated), settings of the line, tensors of its checkpoints."""


@dataclass(frozen=True)
class Stage:
    """Where the kills happen."""

    paths: LinePaths
    reset: Callable[[], None]
    expected: dict[str, Any]
    operations: int
    sample: int
    tensors: set[str]


def run(paths: LinePaths) -> None:
    code, message = run_inline(paths.root, say=lambda text: None)
    assert code == 0, message


@pytest.fixture(scope="module", params=KINDS)
def stage(tmp_path_factory, request):
    """A line at a fixed place that can be put back to its beginning, and what an undisturbed run makes."""
    sample, settings, tensors = KINDS[request.param]
    root = tmp_path_factory.mktemp("crash") / "line"
    paths = make_real_line(root, cycles=2, settings=settings)
    pristine = root.with_name("pristine")
    shutil.copytree(root, pristine)

    def reset():
        shutil.rmtree(root)
        shutil.copytree(pristine, root)

    operations = count_operations(lambda: run(paths))
    return Stage(paths, reset, outcome_of_line(paths), operations, sample, tensors)


def test_the_undisturbed_run_is_what_it_should_be(stage):
    assert stage.expected["last_update"] == 16
    assert stage.expected["tensors"].keys() == stage.tensors
    assert stage.expected["shards"] == []
    assert len(stage.expected["manifests"]) == 2
    assert stage.operations > 200


def points(stage: Stage) -> list[int]:
    if ALL:
        return list(range(stage.operations))
    step = stage.operations / stage.sample
    return [int(step * k + step / 2) for k in range(stage.sample)]


def test_killed_at_any_file_operation_the_line_ends_with_the_same_bytes(stage):
    for point in points(stage):
        stage.reset()
        assert run_killed(lambda: run(stage.paths), point), f"operation {point} was never reached"
        run_alone(lambda: run(stage.paths))
        assert outcome_of_line(stage.paths) == stage.expected, f"killed at operation {point}"
        names = [path.name for path in stage.paths.checkpoints.iterdir()]
        assert [name for name in names if not name[1:].isdigit()] == ["latest"]
    print(f"\nkilled at {len(points(stage))} of {stage.operations} file operations: all equal")


def test_killed_again_and_again_the_line_still_ends_with_the_same_bytes(stage):
    stage.reset()
    deaths = 0
    while run_killed(lambda: run(stage.paths), stage.operations // 7):
        deaths += 1
        assert deaths < 100, "no progress between kills"
    assert deaths >= 3
    assert outcome_of_line(stage.paths) == stage.expected
    assert len(list_checkpoints(stage.paths)) >= 3
