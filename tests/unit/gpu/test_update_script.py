"""The script of the update: every check runs without a GPU, each can miss, and its bar is where it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.gpu import update
from tests.gpu.machine import run_checks
from tests.unit.gpu.cpu_machine import cpu_machine, table
from trainer_core.engine.capture_check import check_capture
from trainer_core.errors import Refused
from trainer_core.kernels import adamw
from trainer_core.measure.peaks import by_short_name

H200 = by_short_name("H200")


def test_the_update_is_checked_and_without_a_peak_its_speed_shows_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not run_checks(update.CHECKS, cpu_machine())
    rows = table(capsys.readouterr().out)
    bandwidth = rows.pop("the update is near the bandwidth")
    assert bandwidth[0] == "MISS" and "no peak is known" in bandwidth[1]
    assert {word for word, _ in rows.values()} == {"ok"} and len(rows) == 3


def test_the_given_parameters_can_be_captured() -> None:
    """What the recording GPU does not see: a copy from the host in the loss."""
    with torch.device("meta"):
        model = update.Given(update.SMALL, torch.device("meta"))
    model.give(1)
    report = check_capture(model, model.loss, micro=[(2, 2)], ema=True, shadow=torch.bfloat16)
    assert report.problems == ()


def test_an_update_of_its_own_is_a_miss(capsys: pytest.CaptureFixture[str]) -> None:
    def drifting(buffers: adamw.Buffers, c: adamw.Coefficients) -> None:
        adamw.update_reference(buffers, c)
        buffers.V.mul_(1 + 1e-5)

    assert not run_checks(update.CHECKS[:1], replace(cpu_machine(), optimizer=drifting))
    assert "exp_avg_sq off by" in table(capsys.readouterr().out)["the update equals the reference"][1]


def test_an_update_that_moves_an_average_when_it_is_skipped_is_a_miss(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def moving(buffers: adamw.Buffers, c: adamw.Coefficients) -> None:
        adamw.update_reference(buffers, c)
        assert buffers.E is not None
        buffers.E.mul_(0.5)

    assert not run_checks(update.CHECKS[2:3], replace(cpu_machine(), optimizer=moving))
    assert table(capsys.readouterr().out)["a bad element moves nothing"][0] == "MISS"


def test_the_bar_of_the_bandwidth() -> None:
    """H200: 4.8 TB/s."""
    for gigabytes, good in ((3.85, True), (3.83, False)):
        found, said = update.judge_bandwidth(int(gigabytes * 1e9), 1e-3, H200)
        assert found is good and "of H200's peak (bar 80%)" in said
    with pytest.raises(Refused, match="cannot be"):
        update.judge_bandwidth(int(4.9e9), 1e-3, H200)
