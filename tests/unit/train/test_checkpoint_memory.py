"""What a checkpoint costs in memory: its snapshot, made once, and slices; in a process of its own.

The kernel tells the largest resident size since the mark. The state has 160 MB, a file of it 80.
"""

import json
import subprocess
import sys

import pytest

MB = 1_000_000
CHILD = """
import json, resource, sys
from pathlib import Path

import torch

from tests.tools.resident import resident
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.line.checkpoints import verify
from trainer_core.line.paths import LinePaths
from trainer_core.train.checkpoint import CheckpointWriter
from trainer_core.train.resume import load_tensors

torch.set_num_threads(1)


def grown(work):
    "Bytes by which the process was larger than now while it did the work."
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def allocate():
    global writer
    writer = CheckpointWriter(paths, live, EagerReplay(), threads=2)


def save():
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    writer.save(1, {}, before=lambda: None)
    seen["faults"] = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
    while not writer.idle(timeout=1):
        pass


seen, paths = {}, LinePaths(Path(sys.argv[1]))
live = {"params": torch.full((20_000_000,), 0.5), "exp_avg": torch.full((20_000_000,), 0.25)}
seen["snapshot"] = grown(allocate)
seen["save"] = grown(save)
for tensor in live.values():
    tensor.zero_()
seen["verify"] = grown(lambda: seen.update(problems=verify(paths.checkpoint(1), threads=2)))
seen["load"] = grown(lambda: load_tensors(paths.checkpoint(1), live))
seen["values"] = [(float(tensor[0]), float(tensor[-1])) for tensor in live.values()]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Bytes that each step of a checkpoint's life took."""
    folder = tmp_path_factory.mktemp("line")
    done = subprocess.run([sys.executable, "-c", CHILD, folder], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_snapshot_is_the_states_size_and_a_save_adds_nothing(seen):
    assert 160 * MB <= seen["snapshot"] <= 170 * MB
    assert seen["save"] <= 8 * MB


def test_the_snapshot_is_touched_before_the_first_save(seen):
    assert seen["faults"] <= 40, "the loop paid for pages, of which 160 MB are 80 at the least"


def test_a_resume_holds_slices_beside_the_state(seen):
    assert seen["problems"] == []
    assert seen["values"] == [[0.5, 0.5], [0.25, 0.25]]
    assert seen["verify"] <= 40 * MB
    assert seen["load"] <= 24 * MB
