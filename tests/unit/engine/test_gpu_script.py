"""The checks of the GPU scripts hold on the recording GPU, and each can miss."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from tests.gpu import arena_checks, capture
from tests.gpu.machine import Machine, run_checks
from tests.tools.simulated_gpu import SimulatedGpu
from tests.unit.engine.fake_cuda import FakeCuda
from trainer_core.gpu.devices import GpuMemory
from trainer_core.kernels import adamw


def _machine(gpu: SimulatedGpu | None = None) -> Machine:
    gpu = gpu or SimulatedGpu()

    @contextmanager
    def neighbour(num_bytes: int):
        held = gpu.other_process(77, num_bytes)
        yield
        del held
        gpu.listed.clear()

    return Machine(
        device=torch.device("cpu"),
        devices=gpu,
        cuda=FakeCuda(gpu=gpu),
        neighbour=neighbour,
        optimizer=adamw.update_reference,
        model="llama-nano-cpu",
        vocab=64,
        shapes=((1, 8), (1, 12)),
        updates=3,
        failures=2,
    )


def _missed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    return [line[5:45].strip() for line in lines if line.startswith("MISS")]


def test_every_check_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_checks(capture.CHECKS, _machine()), capsys.readouterr().out
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(capture.CHECKS)
    assert all(line.startswith("ok") for line in lines)


def test_an_update_that_always_moves_is_a_miss(capsys: pytest.CaptureFixture[str]) -> None:
    def moving(buffers: adamw.Buffers, c: adamw.Coefficients) -> None:
        adamw.update_reference(buffers, c)
        buffers.P.add_(1e-3)

    assert not run_checks(capture.CHECKS[:5], replace(_machine(), optimizer=moving))
    assert _missed(capsys) == [
        "preparing moves no bit",
        "replays equal eager",
        "a bad gradient is skipped",
        "release and capture again",
    ]


def test_memory_that_is_lost_is_a_miss(capsys: pytest.CaptureFixture[str]) -> None:
    class Lost(SimulatedGpu):
        """A little less is there at every look."""

        looks = 0

        def memory(self, gpu: int) -> GpuMemory:
            self.looks += 1
            return replace(super().memory(gpu), ours=self.looks)

    assert not run_checks(capture.CHECKS[4:6], _machine(Lost()))
    assert _missed(capsys) == ["release and capture again", "failed captures hold nothing"]


def test_a_pool_that_grows_is_a_miss(capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks of another stream serve no capture."""

    class Elsewhere(SimulatedGpu):
        def allocate(self, gpu: int, num_bytes: int) -> object:
            stream, large = self.stream, num_bytes > 1 << 30
            self.stream = "elsewhere" if large else stream
            try:
                return super().allocate(gpu, num_bytes)
            finally:
                self.stream = stream

    machine = replace(_machine(Elsewhere()), shapes=((1, 48), (1, 96)))
    assert not run_checks(arena_checks.CHECKS[:1], machine)
    assert _missed(capsys) == ["the arena serves every capture"]


def test_an_arena_that_takes_too_much_is_a_miss(capsys: pytest.CaptureFixture[str]) -> None:
    class Blind(SimulatedGpu):
        """Says that all memory is free."""

        def memory(self, gpu: int) -> GpuMemory:
            return replace(super().memory(gpu), free=self.space.size)

    assert not run_checks(arena_checks.CHECKS[3:5], _machine(Blind()))
    assert _missed(capsys) == ["others are left what they hold", "nothing to hold names who has it"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("script", ["capture"])
def test_without_a_gpu_it_says_so(script: str) -> None:
    command = [sys.executable, f"tests/gpu/{script}.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "no GPU\n"), done.stderr
