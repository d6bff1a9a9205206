"""Measuring a tiny model: the values fit together, and what cannot be is never returned."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deployments.cli.bench import bench as command
from trainer_core.errors import Refused
from trainer_core.measure import bench as measure
from trainer_core.measure.bench import bench, bench_limits, rates
from trainer_core.measure.bench_text import bench_text, limits_text
from trainer_core.measure.breakdown import activation_bytes
from trainer_core.measure.limits import Impossible
from trainer_core.measure.peaks import GpuPeaks, by_short_name
from trainer_core.measure.throughput import Measured, Rig, Workload, preset_workload

TINY = Workload(
    model="llama",
    config={"layers": 1, "width": 16, "heads": 2, "ffn": 32, "rope_max_seq_len": 32},
    vocab_size=64,
    seq_len=16,
    rows=2,
    accum=2,
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def measured(seconds: float, update: float = 1.0) -> Measured:
    return Measured(
        losses=(1.0,),
        wall_seconds=seconds,
        cpu_seconds=seconds,
        part_seconds={"micro": seconds, "norm": update / 4, "update": 3 * update / 4},
    )


def test_the_values_of_a_measurement_fit_together(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    found = bench(replace(TINY, ema=True), updates=2, trace=trace)
    num = found["parameters"]
    assert found["tokens_per_second"] == pytest.approx(64 / found["update_seconds"])
    assert found["mfu"] is found["hfu"] is found["update_share"] is None
    assert found["flops_per_second"] == pytest.approx(found["flops_per_token"] * found["tokens_per_second"])
    assert set(found["part_seconds"]) == {"micro", "norm", "update"}
    assert found["update_bytes_per_parameter"] == 44
    flat = {name: size for name, size in found["memory_bytes"].items() if name != "activations"}
    assert set(flat) == {"P", "G", "M", "V", "E"} and len(set(flat.values())) == 1
    assert all(size >= 4 * num for size in flat.values())
    assert sum(kernel["share"] for kernel in found["kernels"]) == pytest.approx(1)
    assert any(kernel["name"] == "aten::mm" for kernel in found["kernels"])
    assert len(found["losses"]) == 4
    assert json.loads(trace.read_text())["traceEvents"] and found["trace"] == str(trace)
    assert "no MFU" in bench_text(json.loads(json.dumps(found)))


def test_a_trace_that_cannot_be_written_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "Rig", None)
    with pytest.raises(FileNotFoundError):
        bench(TINY, updates=1, trace=tmp_path / "gone" / "trace.json")


def test_losses_are_those_of_the_step() -> None:
    rig, other = Rig(TINY), Rig(TINY)
    expected = [other.update(batch).loss for batch in TINY.batches(4)]
    assert list(rig.measure(updates=2, warm_up=2).losses) == expected
    assert torch.equal(rig.state.P, other.state.P)


@pytest.mark.parametrize(("exactness", "mode"), [("exact", 2), ("fast", 0)])
def test_measuring_has_the_switch_of_the_line_and_puts_it_back(
    monkeypatch: pytest.MonkeyPatch, exactness: str, mode: int
) -> None:
    before, seen, rig = torch.get_deterministic_debug_mode(), [], Rig(replace(TINY, exactness=exactness))
    submit = rig.step.submit

    def watched(*arguments: object) -> None:
        seen.append(torch.get_deterministic_debug_mode())
        submit(*arguments)

    monkeypatch.setattr(rig.step, "submit", watched)
    rig.measure(updates=1, warm_up=1)
    assert seen == [mode, mode]
    assert torch.get_deterministic_debug_mode() == before


def test_shares_of_a_known_gpu() -> None:
    rig = Rig(replace(TINY, ac="full"))
    peaks = GpuPeaks(name="X", bf16_flops=1e9, bandwidth=1e6, memory=1e9)
    found = rates(rig, measured(0.5), peaks)
    flops = rig.model.flops_per_token(16)
    assert found["mfu"] == pytest.approx(flops * 64 / 0.5 / 1e9)
    assert found["hfu"] / found["mfu"] == pytest.approx(found["hardware_flops_per_token"] / flops) and (
        1 < found["hfu"] / found["mfu"] < 4 / 3
    )
    assert found["update_share"] == pytest.approx(36 * rig.state.layout.num_parameters / 1e6)
    assert found["update_floor_seconds"] == pytest.approx(found["update_share"])


@pytest.mark.parametrize(
    ("peaks", "word"),
    [
        (GpuPeaks(name="X", bf16_flops=1.0, bandwidth=1e15, memory=1e9), "MFU"),
        (GpuPeaks(name="X", bf16_flops=1e18, bandwidth=1.0, memory=1e9), "bandwidth"),
    ],
)
def test_more_than_the_peak_is_not_returned(
    peaks: GpuPeaks, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "known_gpu", lambda name: peaks)
    with pytest.raises(Impossible, match=f"{word}.*the measurement is wrong"):
        bench(TINY, updates=1)


def test_the_stopwatch_sorts_parts_by_their_kind() -> None:
    rig = Rig(TINY)
    timed = rig.timed
    rig.update(TINY.batches(1)[0])
    seconds = timed.take_seconds()
    assert set(seconds) == {"micro", "norm", "update"} and all(s >= 0 for s in seconds.values())
    assert timed.take_seconds() == {}


def test_recomputation_needs_less_memory() -> None:
    deep = replace(TINY, config={**(TINY.config or {}), "layers": 4}, rows=4)
    assert activation_bytes(replace(deep, ac="full")) < activation_bytes(deep)


def test_limits_of_kernels_that_only_a_family_has() -> None:
    found = bench_limits(preset_workload("tiny-32k", rows=2))
    kernels = {kernel["name"]: kernel for kernel in found["kernels"]}
    assert (kernels["scan state"]["runs"], kernels["pool read forward"]["runs"]) == (6, 2)
    scan = kernels["scan state"]  # memory binds it
    assert scan["floor_seconds"]["H200"] == pytest.approx(scan["bytes"] / 4.8e12)
    read = kernels["pool read events"]  # products bind it
    assert read["floor_seconds"]["H200"] == pytest.approx(read["flops"] / 989e12, rel=1e-3)
    # Four products over the causal half of the pairs, two FLOPs each: rows, heads, tokens, head width.
    assert read["flops"] == pytest.approx(4 * 2 * 2 * 4 * 4_096**2 / 2 * 64, rel=1e-3)
    assert "pool read events" in limits_text(found)
    short, whole = (bench_limits(preset_workload("tiny-32k", seq_len=T))["kernels"] for T in (100, 128))
    assert short[3]["name"] == "scan scan" and short[3]["flops"] == whole[3]["flops"], (
        "a chunk is a power of two"
    )
    assert bench_limits(preset_workload("llama-nano-cpu"))["kernels"] == []


def test_the_documentation_has_the_floors_of_the_kernels() -> None:
    text = (Path(__file__).parents[3] / "docs" / "performance.md").read_text(encoding="utf-8")
    written = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith(("| scan ", "| pool read "))
    ]
    printed = limits_text(bench_limits(preset_workload("ns-2b", rows=1))).splitlines()
    assert written == [re.split(r"  +", line) for line in printed if line.startswith(("scan ", "pool read "))]


def test_limits_measure_nothing_and_name_three_gpus() -> None:
    found = bench_limits(preset_workload("llama-nano-cpu", ac="full", ema=True))
    assert [row["gpu"] for row in found["limits"]] == ["H100", "H200", "GB300"]
    assert found["update_bytes_per_parameter"] == 46
    floor = 46 * found["parameters"] / by_short_name("H200").bandwidth
    assert found["limits"][1]["update_seconds"] == pytest.approx(floor)
    assert "GB300" in limits_text(found)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "llama-9000b"}, ["model 'llama-9000b' is not known", "llama-nano-cpu"]),
        (
            {"model": "llama-nano-cpu", "seq_len": 1 << 20, "rows": 0, "ac": "some"},
            ["--seq-len 1048576", "--rows 0", "--ac some"],
        ),
        ({"model": "llama-nano-cpu", "updates": 0, "threads": -1}, ["--updates 0", "--threads -1"]),
        ({"model": "llama-nano-cpu", "threads": 10**9}, ["--threads 1000000000: expected 1 to 1024"]),
        (
            {"model": "llama-nano-cpu", "rows": 10**9},
            ["--rows: 1000000000 rows of 32 are a micro-batch of 32,000,000,000 tokens"],
        ),
        ({"model": "llama-nano-cpu", "rows": 10**20, "limits": True}, ["at most 16,777,216"]),
        (
            {"model": "llama-nano-cpu", "accum": 10**12},
            ["the rows of 7 updates would take about 1", "--accum"],
        ),
        ({"model": "llama-nano-cpu", "updates": 10**30, "against": "nanogpt"}, ["updates would take about"]),
        *(
            (
                {"model": "llama-nano-cpu", "device": device},
                [f"--device {device}: expected cpu, cuda or cuda:N"],
            )
            for device in ("", "xyz", "meta", "cpu:3", "cuda:", "cuda:x", "cuda:9\n")
        ),
        ({"model": "nano-cpu", "against": "nanogpt"}, ["nano-cpu is a neuronspark; they train Llamas alone"]),
        ({"model": "gpt2-cpu", "against": "hf-trainer"}, ["gpt2-cpu is a gpt2; they train Llamas alone"]),
        ({"model": "llama-nano-cpu", "limits": True, "profile": True}, ["--limits"]),
        ({"model": "llama-nano-cpu", "against": "nanogpt", "device": "cuda"}, ["--device cuda"]),
    ],
)
def test_bad_options_are_refused_together(settings: dict[str, object], words: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        command(**settings)  # type: ignore[arg-type]
    assert all(any(word in problem for problem in caught.value.problems) for word in words)


@pytest.mark.parametrize("rival", [None, "nanogpt"])
def test_what_memory_does_not_hold_is_refused_before_it_is_allocated(
    monkeypatch: pytest.MonkeyPatch, rival: str | None
) -> None:
    monkeypatch.setattr(measure, "total_and_free", lambda device: (1 << 20, 1 << 20))
    monkeypatch.setattr(measure, "Rig", None)
    monkeypatch.setattr(measure, "compare", None)
    with pytest.raises(
        Refused, match=r"training would take about \d+\.\d MB, cpu has 1\.0 MB of memory free"
    ):
        command(model="llama-nano-cpu", device="cpu", against=rival)  # type: ignore[arg-type]


def test_memory_that_ends_meanwhile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure_more(self: Rig, updates: int) -> Measured:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes")

    monkeypatch.setattr(Rig, "measure", measure_more)
    with pytest.raises(Refused, match="out of memory: take fewer rows"):
        bench(TINY)


def test_without_a_compiler_what_is_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    for settings in ({}, {"against": "nanogpt"}):
        with pytest.raises(Refused, match=r"--compile cross_entropy: .*'/nowhere/c\+\+' is not here"):
            command(model="llama-nano-cpu", compile="cross_entropy", **settings)  # type: ignore[arg-type]
    assert command(model="llama-nano-cpu", compile="cross_entropy", limits=True) == 0


def test_the_command_prints_one_json_value_and_writes_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(model="llama-nano-cpu", rows=1, updates=1, device="cpu", profile=True, json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "cpu" and found["workload"]["rows"] == 1
    assert (tmp_path / found["trace"]).exists()
