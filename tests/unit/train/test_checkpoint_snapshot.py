"""A snapshot is of one moment, whatever device, pieces and threads; the loop waits for none of them."""

import threading
from contextlib import contextmanager

import pytest
import torch

from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.line.checkpoints import verify
from trainer_core.line.paths import LinePaths
from trainer_core.train import checkpoint, snapshot
from trainer_core.train.checkpoint import CheckpointWriter
from trainer_core.train.resume import load_tensors
from trainer_core.train.snapshot import Snapshot

torch.set_num_threads(1)


class LateDevice:
    """A device that copies when it gets to it: what was asked for is done when its mark is waited for."""

    def __init__(self):
        self.calls = []
        self.reached = threading.Event()

    @contextmanager
    def active(self):
        self.calls.append("active")
        yield
        self.calls.append("left")

    def host_buffer(self, size, dtype):
        self.calls.append(("buffer", size, dtype))
        return torch.zeros(size, dtype=dtype)

    def mark(self):
        self.calls.append("mark")

        def wait():
            assert self.reached.wait(10)
            self.calls.append(("waited", threading.current_thread() is threading.main_thread()))

        return wait


def live_state():
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(5000, generator=generator) for name in ("params", "exp_avg", "ema")}


@pytest.fixture
def paths(tmp_path):
    return LinePaths(tmp_path)


def test_the_writer_waits_for_the_device_and_the_loop_does_not(paths):
    device = LateDevice()
    writer = CheckpointWriter(paths, live_state(), device)
    assert device.calls == [("buffer", 5000, torch.float32)] * 3, "allocated before the first checkpoint"
    device.calls.clear()
    writer.save(1, {}, before=lambda: device.calls.append("before"))
    assert not writer.idle(timeout=0.05)
    assert device.calls == ["active", "mark", "left"], "marked in order with the updates"
    assert not paths.checkpoints.exists()
    device.reached.set()
    assert writer.idle(timeout=10)
    assert device.calls[3:] == [("waited", False), "before"]
    assert verify(paths.checkpoint(1)) == []


def test_a_device_that_fails_is_an_error_of_the_write(paths):
    class Failing(LateDevice):
        def mark(self):
            def wait():
                raise RuntimeError("device lost")

            return wait

    writer = CheckpointWriter(paths, live_state(), Failing())
    writer.save(1, {}, before=lambda: None)
    with pytest.raises(RuntimeError, match="device lost"):
        writer.idle(timeout=10)
    assert not paths.checkpoints.exists()


@pytest.mark.parametrize("piece", [4, 1000, 19_996, 20_000, 1 << 20])
def test_pieces_are_one_tensor_in_the_file(paths, monkeypatch, piece):
    monkeypatch.setattr(snapshot, "PIECE_BYTES", piece)
    live = {"params": live_state()["params"]}
    writer = CheckpointWriter(paths, live, EagerReplay())
    expected = live["params"].clone()
    writer.save(1, {}, before=lambda: None)
    live["params"].zero_()
    assert writer.idle(timeout=10)
    load_tensors(paths.checkpoint(1), live)
    assert live["params"].equal(expected)


def test_a_snapshot_keeps_its_memory_and_has_the_newest_values():
    live = live_state()
    taken = Snapshot(live, EagerReplay())
    taken.take()()
    places = [piece.data_ptr() for pieces in taken.pieces().values() for piece in pieces]
    live["ema"].add_(1)
    assert not torch.cat(list(taken.pieces()["ema"])).equal(live["ema"])
    taken.take()()
    assert torch.cat(list(taken.pieces()["ema"])).equal(live["ema"])
    assert [piece.data_ptr() for pieces in taken.pieces().values() for piece in pieces] == places


def test_threads_write_the_same_bytes(paths, monkeypatch):
    together = threading.Barrier(3)
    plain = checkpoint._write_tensor

    def meet(*arguments):
        together.wait(10)
        return plain(*arguments)

    pieces = {name: [tensor] for name, tensor in live_state().items()}
    one = checkpoint.write_checkpoint(paths, 1, pieces, {})
    monkeypatch.setattr(checkpoint, "_write_tensor", meet)
    three = checkpoint.write_checkpoint(paths, 2, pieces, {}, threads=3)
    names = sorted(path.name for path in one.iterdir())
    assert names == [
        "ema.safetensors",
        "exp_avg.safetensors",
        "manifest.json",
        "params.safetensors",
        "state.json",
    ]
    assert [(one / name).read_bytes() for name in names] == [(three / name).read_bytes() for name in names]
