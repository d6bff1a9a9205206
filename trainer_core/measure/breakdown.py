"""Where an update's time and memory go: operators by their own time, buffers by owner, a trace for a viewer.

The profiler's own cost is in its run and not in the throughput that is measured without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from trainer_core.engine.assemble import SHADOWS
from trainer_core.engine.capture_check import check_capture
from trainer_core.engine.determinism import exactness_of
from trainer_core.engine.flat import FlatState
from trainer_core.measure.throughput import Rig, Workload

OWNERS = ("P", "G", "M", "V", "E", "W")
"""Flat buffers: parameters, gradients, two moments, their average, rounded weights."""

SHOWN_KERNELS = 12


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """Time of one operator or kernel in an update."""

    name: str
    """Its name; the last entry of a breakdown is "others"."""
    calls: int
    """How often it ran."""
    seconds: float
    """Its own time, without what it called."""
    share: float
    """Its part of the time of all."""


def kernel_times(rig: Rig, trace: Path | None = None) -> list[KernelTime]:
    """Operators of one update by their own time, longest first; writes a chrome trace where asked.

    On a GPU the kernels on the device, on a CPU the operators.
    """
    (batches,) = rig.workload.batches(1)
    on_gpu = rig.state.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with exactness_of(rig.workload.exactness):
        rig.update(batches)
        with profile(activities=activities) as seen:
            rig.update(batches)
    if trace is not None:
        seen.export_chrome_trace(str(trace))
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    timed = [(str(e.key), int(e.count), float(getattr(e, own)) / 1e6) for e in seen.key_averages()]
    return _longest([entry for entry in timed if entry[2] > 0])


def memory_by_owner(state: FlatState) -> dict[str, int]:
    """Bytes of each flat buffer that there is."""
    buffers = {name: getattr(state, name) for name in OWNERS}
    return {name: buffer.nbytes for name, buffer in buffers.items() if buffer is not None}


def activation_bytes(workload: Workload) -> int:
    """Peak bytes of what forward and backward of a micro-batch make, by a trace on the meta device."""
    with torch.device("meta"):
        model = workload.build()
    report = check_capture(
        model,
        lambda ids, targets: model.loss(ids, targets, workload.ac),
        micro=[(workload.rows, workload.seq_len)],
        ema=workload.ema,
        shadow=SHADOWS[workload.precision],
        device=torch.device(workload.device).type,
    )
    return max(part.peak_bytes for part in report.parts if part.part.startswith("micro"))


def _longest(timed: list[tuple[str, int, float]]) -> list[KernelTime]:
    timed.sort(key=lambda entry: -entry[2])
    total = sum(seconds for _, _, seconds in timed)
    rest = timed[SHOWN_KERNELS:]
    shown = timed[:SHOWN_KERNELS]
    if rest:
        shown.append(("others", sum(e[1] for e in rest), sum(e[2] for e in rest)))
    return [
        KernelTime(name=name, calls=calls, seconds=seconds, share=seconds / total)
        for name, calls, seconds in shown
    ]
