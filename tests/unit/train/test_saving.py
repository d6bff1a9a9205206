"""What the loop asks of a checkpoint: durable rows first, errors told, nothing left of a failed attempt."""

import errno
import os
import threading

import pytest
import torch

from tests.tools.faults import run_failing, trace
from trainer_core.errors import DiskFull
from trainer_core.line.checkpoints import discard_partial, list_checkpoints, verify
from trainer_core.line.paths import LinePaths
from trainer_core.train import checkpoint, saving
from trainer_core.train.checkpoint import write_checkpoint
from trainer_core.train.resume import find_resume_point

torch.set_num_threads(1)

TENSORS = {"params": [torch.ones(64)], "exp_avg": [torch.zeros(64)]}


def state(update):
    position = {"cycle": 0, "part": 0, "row": 0}
    return {"update": update, "tokens": update, "position": position, "kept": None, "data": {}}


def test_every_operation_may_fail_and_a_whole_checkpoint_is_left(tmp_path, monkeypatch):
    def begin(name):
        paths = LinePaths(tmp_path / name)
        paths.root.mkdir()
        write_checkpoint(paths, 1, TENSORS, state(1))
        return paths, lambda: write_checkpoint(paths, 2, TENSORS, state(2))

    operations = len(trace(begin("whole")[1], monkeypatch))
    assert operations > 15
    ends, survived = set(), []
    for code, kind in ((errno.ENOSPC, "full"), (errno.EIO, "broken")):
        for at in range(operations):
            paths, work = begin(f"{kind}{at}")
            full = False
            try:
                raised = run_failing(work, at, code, monkeypatch)
            except DiskFull as error:
                full, raised = True, error.__cause__
            if raised is None:
                survived.append(at)
            else:
                assert (raised.errno, full) == (code, code == errno.ENOSPC)
            point = find_resume_point(paths)
            assert all(verify(info.path) == [] for info in list_checkpoints(paths))
            assert sorted(path.name for path in paths.checkpoints.glob("u*")) in (["u1"], ["u1", "u2"])
            ends.add(point.info.update)
            if point.info.update == 1:
                work()
                assert find_resume_point(paths).info.update == 2
            assert discard_partial(paths) == []
    assert ends == {1, 2}, "some operations come after the rename"
    assert survived == [0, 0], "only the folder of all checkpoints need not be made again"


def test_rows_are_durable_before_the_checkpoint_and_not_in_the_loops_thread(rig, monkeypatch):
    line = rig()
    loop = line.loop()
    calls = []
    plain = os.fsync
    ledger = str(line.paths.metrics)

    def fsync(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        calls.append((path, threading.current_thread() is threading.main_thread()))
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    loop.run(1)
    for update in (2, 4):
        params = str(line.paths.checkpoint(update)) + ".part/params.safetensors"
        before = [path for path, _ in calls[: calls.index((params, False))]]
        assert before.count(ledger) == update // 2 + 1
    assert (ledger, True) not in calls


def test_a_failed_attempt_leaves_no_writer_behind(rig, monkeypatch):
    line = rig()
    loop = line.loop()
    gate, plain = threading.Event(), checkpoint.write_checkpoint

    def slow(paths, update, *arguments, **options):
        if update == 2:
            threading.Timer(0.2, gate.set).start()
            assert gate.wait(10)
        return plain(paths, update, *arguments, **options)

    def fail(*arguments):
        if loop.progress.update == 2:
            raise RuntimeError("training failed")
        return rows(*arguments)

    monkeypatch.setattr(checkpoint, "write_checkpoint", slow)
    rows = line.rows.rows
    monkeypatch.setattr(line.rows, "rows", fail)
    with pytest.raises(RuntimeError, match="training failed"):
        loop.run(None)
    assert gate.is_set(), "the loop ended while its checkpoint was being written"
    assert [info.update for info in list_checkpoints(line.paths)] == [0, 2]
    monkeypatch.undo()
    again = line.loop()
    assert again.progress.update == 2
    again.run(1)
    assert all(verify(info.path) == [] for info in list_checkpoints(line.paths))


@pytest.mark.parametrize(("cores", "training", "threads"), [(2, 1, 1), (2, 2, 1), (1, 4, 1), (16, 1, 15)])
def test_writers_take_the_cores_that_training_leaves(monkeypatch, cores, training, threads):
    monkeypatch.setattr(saving, "cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: training)
    assert saving.writer_threads() == threads
