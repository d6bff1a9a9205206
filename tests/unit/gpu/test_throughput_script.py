"""The script of throughput: it runs without a GPU, its bar can be missed, and all scripts start anywhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.gpu import throughput
from tests.gpu.machine import run_checks
from tests.unit.gpu.cpu_machine import cpu_machine, table
from trainer_core.errors import Refused
from trainer_core.measure.peaks import by_short_name
from trainer_core.measure.throughput import Workload

H200 = by_short_name("H200")


def _found(mfu: float | None, tokens_per_second: float = 1e4) -> dict[str, Any]:
    return {
        "tokens_per_second": tokens_per_second,
        "mfu": mfu,
        "update_share": mfu and 0.85,
        "peak_bytes": 1 << 30,
    }


def test_the_bar_of_training() -> None:
    machine = replace(cpu_machine(), peaks=H200)
    assert throughput.judge_share(machine, _found(0.451))[0]
    good, said = throughput.judge_share(machine, _found(0.449))
    assert not good and "10,000 tokens/s, 1.0 GiB, 44.9% MFU (bar 45%), update at 85%" in said
    with pytest.raises(Refused, match="cannot be"):
        throughput.judge_share(machine, _found(1.2))
    assert "no peak is known" in throughput.judge_share(cpu_machine(), _found(None))[1]


@pytest.mark.parametrize(
    ("shares", "runs", "good"),
    [
        ([0.5], ["none"], True),
        ([0.3, 0.5], ["none", "model"], True),
        ([0.3, 0.3], ["none", "model"], False),
    ],
)
def test_compiled_only_where_the_plain_loss_misses(
    monkeypatch: pytest.MonkeyPatch, shares: list[float], runs: list[str], good: bool
) -> None:
    left, seen = iter(shares), []

    def measured(machine: object, workload: Workload) -> dict[str, Any]:
        seen.append(workload.compile)
        return _found(next(left))

    monkeypatch.setattr(throughput, "measured", measured)
    found, said = throughput.the_large_model_reaches_its_share(replace(cpu_machine(), peaks=H200))
    assert found is good and seen == runs and said.startswith("2 x 16: ")


@pytest.mark.parametrize(("exact", "good"), [(971.0, True), (969.0, False), (1200.0, True)])
def test_the_bar_of_exactness(monkeypatch: pytest.MonkeyPatch, exact: float, good: bool) -> None:
    speeds = {"exact": exact, "fast": 1000.0}
    monkeypatch.setattr(
        throughput, "measured", lambda machine, workload: _found(None, speeds[workload.exactness])
    )
    found, said = throughput.exact_costs_little(cpu_machine())
    assert found is good and said.startswith(f"exact {exact:,.0f} tokens/s, fast 1,000: {exact / 1000:.1%}")


def test_rows_are_tuned_by_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_checks(throughput.CHECKS[2:], cpu_machine())
    assert (
        "x 16 (ac none), 0.0 GiB; tokens/s by rows: 4: "
        in table(capsys.readouterr().out)["tune finds a shape"][1]
    )


def test_the_fastest_rows_that_fit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {4: 900.0, 2: 1000.0, 1: 500.0}

    def measured(machine: object, workload: Workload) -> dict[str, Any]:
        if workload.rows == 4:
            raise Refused("too little memory")
        return _found(None, speeds[workload.rows])

    monkeypatch.setattr(throughput, "measured", measured)
    good, said = throughput.tune_finds_a_shape(cpu_machine())
    assert good and said == "2 x 16 (ac none), 1.0 GiB; tokens/s by rows: 4: 0, 2: 1,000, 1: 500"


def test_no_rows_that_fit_are_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(machine: object, workload: Workload) -> dict[str, Any]:
        raise Refused("too little memory")

    monkeypatch.setattr(throughput, "measured", measured)
    assert throughput.tune_finds_a_shape(cpu_machine())[0] is False


START = """
import runpy, sys
for name in ("prefect", "pydantic", "psutil", "cyclopts", "tokenizers", "pyarrow", "huggingface_hub",
             "transformers", "matplotlib", "yaml", "pytest"):
    sys.modules[name] = None
for script in ("capture", "update", "throughput"):
    try:
        runpy.run_path(f"tests/gpu/{script}.py", run_name="__main__")
    except SystemExit as end:
        print(script, end.code)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_they_start_where_only_torch_triton_numpy_and_safetensors_are() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=False)
    wanted = "no GPU\ncapture 2\nno GPU\nupdate 2\nno GPU\nthroughput 2\n"
    assert done.stdout == wanted, done.stderr
