"""Damage between two runs: what can be rebuilt is, byte for byte; the rest is refused, nothing is lost."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.tools.faults import run_alone
from tests.tools.real_line import make_real_line, outcome_of_line
from trainer_core.errors import Refused
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.files import iterate_jsonl
from trainer_core.ops.run import run_inline

torch.set_num_threads(1)


def run(paths, cycles=None) -> tuple[int, str]:
    return run_inline(paths.root, cycles=cycles, say=lambda text: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an undisturbed line of two cycles ends with."""
    paths = make_real_line(tmp_path_factory.mktemp("whole") / "line", cycles=2)
    run_alone(lambda: run(paths))
    return outcome_of_line(paths)


@pytest.fixture
def line(tmp_path):
    """The same line after its first cycle, whose shards are deleted."""
    paths = make_real_line(tmp_path / "line", cycles=2)
    assert run(paths, cycles=1)[0] == 0
    return paths


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_at_a_cycle_end_costs_updates_not_bytes(line, whole):
    flip(line.checkpoint(8) / "params.safetensors")
    code, message = run(line)
    assert code == 0, message
    assert outcome_of_line(line) == whole
    assert any(row["kind"] == "checkpoint_damaged" for row in iterate_jsonl(line.events))


def test_all_checkpoints_damaged_is_refused_and_changes_nothing(line):
    for info in list_checkpoints(line):
        victim = info.path / "exp_avg.safetensors"
        victim.write_bytes(victim.read_bytes()[:-4])
    before = sorted(path.name for path in line.checkpoints.iterdir())
    code, message = run(line)
    assert code == 20
    assert "no sound checkpoint is left" in message
    assert sorted(path.name for path in line.checkpoints.iterdir()) == before


def test_a_line_without_its_checkpoints_does_not_start_over(line):
    shutil.rmtree(line.checkpoints)
    code, message = run(line)
    assert code == 20
    assert "has updates up to 8" in message


def test_a_copy_of_a_line_is_no_consumer_of_its_data(line):
    copy = line.root.with_name("copy")
    shutil.copytree(line.root, copy)
    with pytest.raises(Refused, match="is consumed by"):
        run_inline(copy, say=lambda text: None)


def test_a_moved_data_line_goes_on_and_another_one_is_refused(line, whole):
    data = line.root.parent / "data"
    elsewhere = data.with_name("moved")
    data.rename(elsewhere)
    line.run_json.write_text(line.run_json.read_text().replace(str(data), str(elsewhere)))
    code, message = run(line)
    assert code == 0, message
    elsewhere.rename(data)
    assert outcome_of_line(line) == whole


def test_a_shard_damaged_on_disk_is_never_trained_on(tmp_path):
    from trainer_core.data.prepare.preparer import CyclePreparer

    paths = make_real_line(tmp_path / "line", cycles=2)
    data = paths.root.parent / "data"
    preparer = CyclePreparer(data)
    preparer.download(0)
    preparer.tokenize(0)
    shard = next(path for path in sorted((data / "cycles" / "000000").rglob("*.safetensors")))
    flip(shard)
    code, message = run(paths)
    assert code == 20
    assert shard.name in message
