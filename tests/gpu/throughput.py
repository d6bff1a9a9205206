"""Speed of whole updates on a real GPU: `python tests/gpu/throughput.py`, under three minutes.

Needs torch, triton, numpy and safetensors. Prints one table; exits 1 when a check misses, 2 without a GPU.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from tests.gpu.machine import Check, Machine, gib, script
from trainer_core.errors import Refused
from trainer_core.measure.bench import rates
from trainer_core.measure.breakdown import activation_bytes
from trainer_core.measure.candidates import Candidate, Trial, choose, shortlist, sizes
from trainer_core.measure.limits import refuse_impossible, state_bytes_per_parameter
from trainer_core.measure.throughput import Rig, Workload, preset_workload

BAR = 0.45
"""Share of the peak of bf16 FLOP/s that training must reach."""

EXACT_BAR = 0.97
"""Share of the speed of the fast mode that the exact mode must reach."""

UPDATES = 4
"""Updates that are timed."""


def the_large_model_reaches_its_share(machine: Machine) -> tuple[bool, str]:
    """As lines train by default; where that is too slow, with the loss compiled."""
    length, rows = machine.large_shape
    shape = {"seq_len": length, "rows": rows, "accum": machine.accum}
    workload = preset_workload(machine.large, **shape, precision="bf16", device=str(machine.device))
    good, said = False, []
    for compile in ("none", "model"):
        if not good:
            good, detail = judge_share(machine, measured(machine, replace(workload, compile=compile)))
            said.append(detail if compile == "none" else f"compiled: {detail}")
    return good, f"{rows} x {length}: " + "; ".join(said)


def exact_costs_little(machine: Machine) -> tuple[bool, str]:
    """The large model with operators that repeat their bits, against the quickest ones."""
    length, rows = machine.large_shape
    shape = {"seq_len": length, "rows": rows, "accum": machine.accum}
    workload = preset_workload(machine.large, **shape, precision="bf16", device=str(machine.device))
    speeds = {
        exactness: measured(machine, replace(workload, exactness=exactness))["tokens_per_second"]
        for exactness in ("fast", "exact")
    }
    share = speeds["exact"] / speeds["fast"]
    said = f"exact {speeds['exact']:,.0f} tokens/s, fast {speeds['fast']:,.0f}: {share:.1%}"
    return share >= EXACT_BAR, f"{said} (bar {EXACT_BAR:.0%})"


def tune_finds_a_shape(machine: Machine) -> tuple[bool, str]:
    """The fastest rows that fit, by the rules of `nstrain tune`, in one process."""
    length, rows = machine.tuned_shape
    present = Candidate(length=length, rows=rows, ac="none")
    room = machine.devices.memory(0).total - machine.slack

    def workload(candidate_rows: int) -> Workload:
        return preset_workload(
            machine.tuned, seq_len=length, rows=candidate_rows, precision="bf16", device=str(machine.device)
        )

    with torch.device("meta"):
        parameters = sum(param.numel() for param in workload(1).build().parameters())
    state = parameters * state_bytes_per_parameter(ema=False, shadow=True)
    every = sizes((4 * rows,), rows)
    chosen = shortlist(every, lambda n: state + activation_bytes(workload(n)) <= room, present=rows)
    trials = [trial(machine, workload(candidate_rows)) for candidate_rows in chosen]
    best = choose(trials, room=room, present=present)
    seen = ", ".join(f"{t.candidate.rows}: {t.tokens_per_second or 0:,.0f}" for t in trials)
    if best is None:
        return False, f"no shape fits ({seen})"
    return True, f"{best.candidate}, {gib(best.peak_bytes or 0)}; tokens/s by rows: {seen}"


def trial(machine: Machine, workload: Workload) -> Trial:
    """One shape, measured; one that does not fit says so."""
    candidate = Candidate(length=workload.seq_len, rows=workload.rows, ac=workload.ac)
    try:
        found = measured(machine, workload)
    except Refused as refused:
        return Trial(candidate=candidate, estimate_bytes=None, problem=str(refused))
    return Trial(
        candidate=candidate,
        estimate_bytes=None,
        tokens_per_second=found["tokens_per_second"],
        peak_bytes=found["peak_bytes"],
    )


def measured(machine: Machine, workload: Workload) -> dict[str, Any]:
    """What `nstrain bench` says of a workload's rates, and the most memory that was in use."""
    gc.collect()  # the engine before this one may be part of a cycle, and its state is large
    with released(Rig(workload)) as rig:
        found = rates(rig, rig.measure(UPDATES), machine.peaks)
        return {**found, "peak_bytes": machine.peak()}


@contextmanager
def released(rig: Rig) -> Iterator[Rig]:
    """The next one needs the arena."""
    try:
        yield rig
    finally:
        rig.step.release()


def judge_share(machine: Machine, found: dict[str, Any]) -> tuple[bool, str]:
    """Whether rates reach the bar; without a known peak nothing can be shown."""
    said = f"{found['tokens_per_second']:,.0f} tokens/s, {gib(found['peak_bytes'])}"
    if machine.peaks is None:
        return False, f"{said}; no peak is known of this device"
    refuse_impossible(
        machine.peaks.name, {"MFU": found["mfu"], "the update's bandwidth": found["update_share"]}
    )
    share = f"{found['mfu']:.1%} MFU (bar {BAR:.0%}), update at {found['update_share']:.0%} of the bandwidth"
    return found["mfu"] >= BAR, f"{said}, {share}"


CHECKS: tuple[Check, ...] = (
    the_large_model_reaches_its_share,
    exact_costs_little,
    tune_finds_a_shape,
)


if __name__ == "__main__":
    sys.exit(script(CHECKS))
