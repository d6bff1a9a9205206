"""Checkpoints appear whole or not at all, and nothing damaged is ever loaded."""

import json
import os
import threading

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.errors import DiskFull, Refused
from trainer_core.line import checkpoints as files
from trainer_core.line import retention
from trainer_core.line.files import iterate_jsonl
from trainer_core.line.ledger import Ledger
from trainer_core.line.paths import LinePaths
from trainer_core.train import checkpoint as module
from trainer_core.train.checkpoint import CheckpointWriter, write_checkpoint
from trainer_core.train.resume import find_resume_point, load_tensors


def state(update, kept=None):
    """A state.json as far as these tests need it."""
    return {
        "update": update,
        "tokens": update * 10,
        "position": {"cycle": 0, "part": 0, "row": update},
        "kept": kept,
        "data": {},
    }


def tensors(seed=0, size=5000):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(size, generator=generator) for name in ("params", "exp_avg")}


def nothing():
    """Nothing is to be done before a checkpoint is published."""


def write(paths, update, live, value):
    """A checkpoint of whole tensors."""
    return write_checkpoint(paths, update, {name: [tensor] for name, tensor in live.items()}, value)


@pytest.fixture
def paths(tmp_path):
    found = LinePaths(tmp_path)
    found.checkpoints.mkdir()
    return found


def test_a_checkpoint_is_plain_safetensors_and_round_trips(paths):
    live = tensors()
    path = write(paths, 3, live, state(3, "start"))
    assert np.array_equal(load_file(path / "params.safetensors")["params"], live["params"].numpy())
    info = files.newest(paths)
    assert info is not None
    assert (info.update, info.tokens, info.row, info.kept) == (3, 30, 3, "start")
    assert files.verify(path) == []
    other = tensors(seed=1)
    load_tensors(path, other)
    assert other["params"].equal(live["params"])
    assert other["exp_avg"].equal(live["exp_avg"])


def test_small_chunks_are_hashed_one_by_one(paths, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(module, "SLICE_BYTES", 1000)
    path = write(paths, 1, tensors(), state(1))
    entry = json.loads((path / "manifest.json").read_text())["files"]["params.safetensors"]
    assert len(entry["chunks"]) == -(-entry["bytes"] // 4096)
    assert files.verify(path) == []
    with open(path / "params.safetensors", "r+b") as file:
        file.seek(9000)
        file.write(b"\x55")
    assert "chunk 2 (bytes from 8192)" in files.verify(path)[0]


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "extend"])
def test_a_damaged_checkpoint_is_set_aside_for_an_older_one(paths, damage):
    write(paths, 1, tensors(1), state(1))
    path = write(paths, 2, tensors(2), state(2))
    victim = path / "exp_avg.safetensors"
    content = victim.read_bytes()
    if damage == "flip":
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "truncate":
        victim.write_bytes(content[:-1])
    elif damage == "extend":
        victim.write_bytes(content + b"x")
    else:
        victim.unlink()
    point = find_resume_point(paths)
    assert point is not None
    assert point.info.update == 1
    assert (paths.checkpoints / "damaged-u2").is_dir()
    assert "exp_avg.safetensors" in next(iterate_jsonl(paths.events))["message"]
    files.discard_partial(paths)
    write(paths, 2, tensors(2), state(2))
    assert files.newest(paths).update == 2


def test_nothing_sound_is_refused_not_restarted(paths):
    path = write(paths, 1, tensors(), state(1))
    (path / "params.safetensors").write_bytes(b"\0" * (path / "params.safetensors").stat().st_size)
    with pytest.raises(Refused, match="no sound checkpoint is left"):
        find_resume_point(paths)


def test_a_tensor_of_another_shape_is_refused(paths):
    path = write(paths, 1, tensors(), state(1))
    with pytest.raises(Refused, match=r"exp_avg\.safetensors: expected one tensor"):
        load_tensors(path, {"exp_avg": torch.zeros(4999)})
    with pytest.raises(Refused, match="missing"):
        load_tensors(path, {"exp_avg_sq": torch.zeros(5000)})


def test_a_full_disk_leaves_the_checkpoints_before(paths, monkeypatch):
    write(paths, 1, tensors(), state(1))
    real, calls = os.write, []

    def full(fd, data):
        calls.append(fd)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFull, match="checkpoint of update 2"):
        write(paths, 2, tensors(), state(2))
    monkeypatch.undo()
    assert sorted(p.name for p in paths.checkpoints.iterdir()) == ["latest", "u1"]
    assert files.verify(paths.checkpoint(1)) == []


def test_the_snapshot_is_of_one_moment(paths, monkeypatch):
    live = tensors()
    writer = CheckpointWriter(paths, live, EagerReplay())
    gate = threading.Event()
    real = module.write_checkpoint
    monkeypatch.setattr(module, "write_checkpoint", lambda *a, **k: (gate.wait(10), real(*a, **k)))
    expected = {name: tensor.clone() for name, tensor in live.items()}
    writer.save(5, state(5), nothing)
    for tensor in live.values():
        tensor.add_(1)
    assert not writer.idle()
    gate.set()
    assert writer.idle(timeout=10)
    found = load_file(paths.checkpoint(5) / "params.safetensors")["params"]
    assert np.array_equal(found, expected["params"].numpy())


def test_a_failed_write_is_raised_once(paths, monkeypatch):
    writer = CheckpointWriter(paths, tensors(), EagerReplay())

    def fail(*_, **__):
        raise DiskFull("full")

    monkeypatch.setattr(module, "write_checkpoint", fail)
    writer.save(5, state(5), nothing)
    with pytest.raises(DiskFull):
        writer.idle(timeout=10)
    assert writer.idle()


def test_half_written_directories_are_removed_and_nothing_else(paths):
    write(paths, 1, tensors(), state(1))
    for name in ("u2.part", "u3", "u3-backup", "notes"):
        (paths.checkpoints / name).mkdir()
        (paths.checkpoints / name / "params.safetensors").touch()
    assert [c.update for c in files.list_checkpoints(paths)] == [1]
    assert files.discard_partial(paths) == ["u2.part"]
    assert sorted(p.name for p in paths.checkpoints.iterdir()) == ["latest", "notes", "u1", "u3", "u3-backup"]


def test_damage_to_every_checkpoint_is_refused_and_touches_none(paths):
    for update in (1, 2):
        path = write(paths, update, tensors(), state(update))
        victim = path / "params.safetensors"
        victim.write_bytes(victim.read_bytes()[:-1])
    files.discard_partial(paths)
    with pytest.raises(Refused, match="no sound checkpoint is left") as refused:
        find_resume_point(paths)
    assert len(refused.value.problems) == 3
    assert sorted(p.name for p in paths.checkpoints.iterdir()) == ["latest", "u1", "u2"]


def test_a_file_that_cannot_be_read_is_no_damage(paths):
    path = write(paths, 1, tensors(), state(1))
    (path / "manifest.json").unlink()
    (path / "manifest.json").symlink_to("manifest.json")
    with pytest.raises(Refused, match="cannot be read"):
        find_resume_point(paths)
    assert path.is_dir()


def test_a_trained_line_without_checkpoints_does_not_start_over(paths):
    assert find_resume_point(paths) is None
    Ledger(paths.metrics, attempt=1).append("update", 7, {})
    with pytest.raises(Refused, match="has updates up to 7"):
        find_resume_point(paths)


def test_retention_keeps_the_newest_the_kept_and_the_last_rolling(paths):
    for update in range(8):
        kept = {0: "start", 4: "cycle-end"}.get(update)
        write(paths, update, tensors(size=8), state(update, kept))
    assert retention.apply(paths, keep_last=2) == [1, 2, 3, 5]
    assert [c.update for c in files.list_checkpoints(paths)] == [0, 4, 6, 7]
    assert retention.apply(paths, keep_last=1) == [6]
