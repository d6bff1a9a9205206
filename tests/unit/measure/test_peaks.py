"""Peaks of known GPUs: whole names only, and figures that fit together."""

from __future__ import annotations

import pytest

from trainer_core.measure.peaks import by_short_name, known_gpu


@pytest.mark.parametrize(
    ("name", "teraflops", "terabytes"),
    [
        ("NVIDIA A100-SXM4-80GB", 312, 2.039),
        ("NVIDIA H100 80GB HBM3", 989.4, 3.35),
        ("NVIDIA H100 PCIe", 756.5, 2.0),
        ("NVIDIA H100 NVL", 835.5, 3.9),
        ("NVIDIA H200", 989.4, 4.8),
        ("NVIDIA B200", 2250, 8.0),
        ("NVIDIA B300 SXM6 AC", 2250, 8.0),
        ("NVIDIA GB300", 2500, 8.0),
        ("NVIDIA L40S", 362.05, 0.864),
        ("NVIDIA GeForce RTX 4090", 165.2, 1.008),
    ],
)
def test_a_known_gpu_has_its_datasheet(name: str, teraflops: float, terabytes: float) -> None:
    peaks = known_gpu(name)
    assert peaks is not None
    assert peaks.bf16_flops == pytest.approx(teraflops * 1e12)
    assert peaks.bandwidth == pytest.approx(terabytes * 1e12)
    assert by_short_name(peaks.name) == peaks


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "AMD Instinct MI300X",
        "Tesla V100-SXM2-32GB",
        "cpu",
        "",
    ],
)
def test_any_other_has_none(name: str) -> None:
    assert known_gpu(name) is None
