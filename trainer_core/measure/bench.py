"""`nstrain bench`: what an engine does on this machine, beside what the hardware allows, as plain values.

The one place that turns times into rates and shares. A share of a peak above 1 is refused before anything is
returned, and a device whose peaks are not known has no shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trainer_core.engine.assemble import Precision
from trainer_core.errors import Refused
from trainer_core.kernels.processor import has_bf16_matmul
from trainer_core.measure.against.compare import THEIRS, as_json, compare, ours
from trainer_core.measure.against.contender import MakeContender
from trainer_core.measure.breakdown import activation_bytes, kernel_times, memory_by_owner
from trainer_core.measure.candidates import size_text
from trainer_core.measure.limits import (
    kernel_floors,
    limits_of,
    refuse_impossible,
    state_bytes_per_parameter,
    update_bytes_per_parameter,
)
from trainer_core.measure.memory import memory_refused, total_and_free
from trainer_core.measure.peaks import GpuPeaks, known_gpu
from trainer_core.measure.throughput import WARM_UP, Measured, Rig, Workload


def bench(workload: Workload, *, updates: int = 5, trace: Path | None = None) -> dict[str, Any]:
    """Measure a workload; keys as docs/performance.md lists them.

    Raises Refused where memory does not hold it, Impossible, and OSError where `trace` cannot be written.
    """
    activations = refuse_beyond_memory(workload, WARM_UP + updates)
    if trace is not None:
        trace.write_bytes(b"")  # fails here and now: the profiler is silent where it cannot write
    with memory_refused():
        rig = Rig(workload)
        measured = rig.measure(updates)
        kernels = [asdict(kernel) for kernel in kernel_times(rig, trace)]
    name = device_name(rig.state.device)
    found = rates(rig, measured, known_gpu(name))
    refuse_impossible(
        name, {"MFU": found["mfu"], "HFU": found["hfu"], "the update's bandwidth": found["update_share"]}
    )
    return {
        "workload": described(workload),
        "device": name,
        "parameters": rig.state.layout.num_parameters,
        **found,
        "losses": list(measured.losses),
        "memory_bytes": {**memory_by_owner(rig.state), "activations": activations},
        "kernels": kernels,
        "trace": None if trace is None else str(trace),
    }


def rates(rig: Rig, measured: Measured, peaks: GpuPeaks | None) -> dict[str, Any]:
    """Tokens per second, FLOPs, MFU, HFU, and the bandwidth of norm and update; None = not known."""
    workload = rig.workload
    on_cpu = rig.state.device.type == "cpu"
    flops = rig.model.flops_per_token(workload.seq_len)
    recomputed = rig.model.recomputed_flops_per_token(workload.seq_len, workload.ac)
    hardware = None if recomputed is None else flops + recomputed
    tokens_per_second = workload.tokens / measured.wall_seconds
    seconds = measured.part_seconds["norm"] + measured.part_seconds["update"]
    each = update_bytes_per_parameter(ema=workload.ema, shadow=workload.precision == "bf16")
    traffic = each * rig.state.layout.num_parameters
    peak_flops = None if peaks is None else peaks.bf16_flops
    bandwidth = None if peaks is None else peaks.bandwidth
    return {
        "tokens_per_second": tokens_per_second,
        "tokens_per_cpu_second": workload.tokens / measured.cpu_seconds if on_cpu else None,
        "update_seconds": measured.wall_seconds,
        "part_seconds": dict(measured.part_seconds),
        "flops_per_token": flops,
        "hardware_flops_per_token": hardware,
        "flops_per_second": flops * tokens_per_second,
        "mfu": _share(flops * tokens_per_second, peak_flops),
        "hfu": _share(hardware and hardware * tokens_per_second, peak_flops),
        "update_bytes_per_parameter": each,
        "update_bandwidth": traffic / seconds,
        "update_floor_seconds": None if bandwidth is None else traffic / bandwidth,
        "update_share": _share(traffic / seconds, bandwidth),
    }


def bench_limits(workload: Workload) -> dict[str, Any]:
    """The floors of a workload on known GPUs, in bf16; measures nothing and takes no memory."""
    with torch.device("meta"):
        model = workload.build()
    floors = limits_of(
        model,
        T=workload.seq_len,
        ac=workload.ac,
        tokens_per_update=workload.tokens,
        ema=workload.ema,
    )
    return {
        "workload": described(workload),
        "parameters": sum(param.numel() for param in model.parameters()),
        "flops_per_token": model.flops_per_token(workload.seq_len),
        "recomputed_flops_per_token": model.recomputed_flops_per_token(workload.seq_len, workload.ac),
        "update_bytes_per_parameter": update_bytes_per_parameter(ema=workload.ema, shadow=True),
        "limits": floors,
        "kernels": kernel_floors(model, rows=workload.rows, T=workload.seq_len),
    }


def bench_against(
    workload: Workload, rival: str, *, precision: Precision | None, rounds: int = 5
) -> dict[str, Any]:
    """The engine against other trainers; without a precision in both that this processor computes in."""
    native = has_bf16_matmul()
    wanted: list[Precision] = [precision] if precision else ["fp32", "bf16"] if native else ["fp32"]
    contenders: dict[str, MakeContender] = {}
    for each in wanted:
        contenders |= ours(each, compile=workload.compile)
    refuse_beyond_memory(workload, 1 + rounds)
    with memory_refused():
        results = compare(workload, {**contenders, **THEIRS[rival]}, rounds=rounds)
    return {
        "workload": described(workload),
        "native_bf16": native,
        **as_json(results),
    }


def refuse_beyond_memory(workload: Workload, updates: int) -> int:
    """Bytes of a micro-batch's activations by a trace. Raises Refused where memory cannot hold the workload.

    Nothing is allocated: a host that runs out of memory ends other programs too.
    """
    host, device = torch.device("cpu"), torch.device(workload.device)
    rows = updates * workload.batch_bytes
    _refuse_more(host, rows, f"the rows of {updates} updates")
    with torch.device("meta"):
        num = sum(param.numel() for param in workload.build().parameters())
    shadow = workload.precision == "bf16"
    activations = activation_bytes(workload)
    needed = num * state_bytes_per_parameter(ema=workload.ema, shadow=shadow) + activations
    _refuse_more(device, needed + (rows if device == host else 0), "training")
    return activations


def _refuse_more(device: torch.device, needed: int, what: str) -> None:
    free = total_and_free(device)[1]
    if needed > free:
        raise Refused(
            f"{what} would take about {size_text(needed)}, {device_name(device)} has {size_text(free)} of "
            "memory free; take fewer rows (--rows), shorter ones (--seq-len), less of them (--accum, "
            "--updates), or recompute (--ac)"
        )


def described(workload: Workload) -> dict[str, Any]:
    """A workload as plain values."""
    values = {key: value for key, value in vars(workload).items() if key not in ("config", "seed")}
    config: Mapping[str, Any] | None = workload.config
    return {**values, "config": None if config is None else dict(config), "tokens": workload.tokens}


def device_name(device: torch.device) -> str:
    """The driver's name of a GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _share(rate: float | None, peak: float | None) -> float | None:
    return None if rate is None or peak is None else rate / peak
