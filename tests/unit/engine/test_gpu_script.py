"""The checks of the GPU script hold on the recording GPU, and each can miss."""

from dataclasses import replace

import pytest
import torch

from tests.gpu import capture
from tests.unit.engine.fake_cuda import FakeCuda
from trainer_core.kernels import adamw

MACHINE = capture.Machine(
    device=torch.device("cpu"),
    cuda=FakeCuda,
    reserved=lambda: 0,
    optimizer=adamw.update_reference,
    model="llama-nano-cpu",
    shapes=((1, 8), (1, 12)),
)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "UPDATES", 3)
    monkeypatch.setattr(capture, "FAILURES", 2)
    monkeypatch.setattr(capture, "VOCAB", 64)


def test_every_check_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert capture.run_checks(MACHINE), capsys.readouterr().out
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(capture.CHECKS)
    assert all(line.startswith("ok") for line in lines)


def test_a_miss_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    def moving(buffers: adamw.Buffers, c: adamw.Coefficients) -> None:
        adamw.update_reference(buffers, c)
        buffers.P.add_(1e-3)

    held = iter(range(10**6))
    machine = replace(MACHINE, optimizer=moving, reserved=lambda: next(held))
    assert not capture.run_checks(machine)
    missed = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("MISS")]
    assert missed == [
        "MISS preparing moves no bit",
        "MISS replays equal eager",
        "MISS a bad gradient is skipped",
        "MISS release and capture again",
        "MISS failed captures hold nothing",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert capture.main() == 2
    assert capsys.readouterr().out == "no GPU\n"
