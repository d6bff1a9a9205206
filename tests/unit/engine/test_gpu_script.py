"""The checks of the GPU scripts hold on the recording GPU, and each can miss."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from tests.gpu import arena_checks, capture, kernel_checks
from tests.gpu.machine import run_checks
from tests.tools.simulated_gpu import SimulatedGpu
from tests.unit.gpu.cpu_machine import cpu_machine
from trainer_core.gpu.devices import GpuMemory
from trainer_core.kernels import adamw
from trainer_core.kernels.attention import causal_attention
from trainer_core.kernels.norm import rms_norm


def _missed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    return [line[5:45].strip() for line in lines if line.startswith("MISS")]


def test_every_check_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_checks(capture.CHECKS, cpu_machine()), capsys.readouterr().out
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(capture.CHECKS)
    assert all(line.startswith("ok") for line in lines)


def test_an_update_that_always_moves_is_a_miss(capsys: pytest.CaptureFixture[str]) -> None:
    def moving(buffers: adamw.Buffers, c: adamw.Coefficients) -> None:
        adamw.update_reference(buffers, c)
        buffers.P.add_(1e-3)

    assert not run_checks(capture.CHECKS[:5], replace(cpu_machine(), optimizer=moving))
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

    assert not run_checks(capture.CHECKS[4:6], cpu_machine(Lost()))
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

    machine = replace(cpu_machine(Elsewhere()), shapes=((1, 48), (1, 96)))
    assert not run_checks(arena_checks.CHECKS[:1], machine)
    assert _missed(capsys) == ["the arena serves every capture"]


def test_an_arena_that_takes_too_much_is_a_miss(capsys: pytest.CaptureFixture[str]) -> None:
    class Blind(SimulatedGpu):
        """Says that all memory is free."""

        def memory(self, gpu: int) -> GpuMemory:
            return replace(super().memory(gpu), free=self.space.size)

    assert not run_checks(arena_checks.CHECKS[3:5], cpu_machine(Blind()))
    assert _missed(capsys) == ["others are left what they hold", "nothing to hold names who has it"]


def test_a_kernel_that_is_off_or_has_other_bits_is_a_miss(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count()
    for name, wrong in {
        "causal_attention": lambda q, k, v: causal_attention(q, k, v) * 1.05,
        "norm": SimpleNamespace(rms_norm=lambda x, w, eps: rms_norm(x, w, eps) + 1e-6 * next(calls)),
    }.items():
        monkeypatch.setattr(kernel_checks, name, wrong)
    assert not run_checks(kernel_checks.CHECKS[1:], cpu_machine())
    assert _missed(capsys) == ["the norm equals its twin", "the attention equals its twin"]


def test_a_gpu_without_its_kernels_is_a_miss() -> None:
    machine = replace(cpu_machine(), device=torch.device("cuda"))
    assert not kernel_checks._judge(machine, False, {torch.float32: 0.0})[0]
    assert kernel_checks._judge(machine, True, {torch.float32: 0.0})[0]
