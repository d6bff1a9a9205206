"""A start on a GPU whose shapes nobody measured is refused before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tools.real_line import make_real_line
from trainer_core.line.paths import LinePaths
from trainer_core.measure.tune_record import Device
from trainer_core.ops.run import run_inline
from trainer_core.ops.tune import tune_line
from trainer_core.train import trainer

torch.set_num_threads(1)

GPU = Device(kind="cuda", name="NVIDIA H200")


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> LinePaths:
    return make_real_line(tmp_path_factory.mktemp("start") / "line", cycles=1)


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer takes the device of this host for a GPU; its engine stays what it is here."""
    monkeypatch.setattr(trainer, "described", lambda device: GPU)


def start(line: LinePaths, **settings: object) -> tuple[int, str]:
    return run_inline(line.root, say=lambda text: None, **settings)  # type: ignore[arg-type]


def test_a_start_is_refused_until_the_line_is_tuned(line: LinePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch)
    code, message = start(line)
    assert code == 20 and "NVIDIA H200" in message and f"`nstrain tune {line.root}`" in message
    assert not list(Path(line.checkpoints).iterdir())

    def ask(request):
        if request["what"] == "device":
            return {"kind": "cuda", "name": GPU.name, "total_bytes": 10**11, "free_bytes": 10**11}
        return {"tokens_per_second": 1.0, "peak_bytes": 1}

    tune_line(line.root, ask=ask, say=lambda text: None)
    code, message = start(line)
    assert code == 0, message
