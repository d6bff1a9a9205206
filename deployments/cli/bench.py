"""`nstrain bench`: measures a preset's training on this machine, or says what hardware would allow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from deployments.cli.printing import Flag, print_json, say
from trainer_core.errors import Refused
from trainer_core.host import load_host
from trainer_core.line.config import MOST_THREADS
from trainer_core.line.cxx import no_compiler
from trainer_core.models.presets import find_preset


def bench(
    *,
    model: str,
    seq_len: int | None = None,
    rows: int | None = None,
    accum: int = 1,
    ac: str = "none",
    precision: Literal["fp32", "bf16"] | None = None,
    ema: Flag = False,
    compile: Literal["none", "cross_entropy", "model"] = "none",
    fast: Flag = False,
    device: str | None = None,
    updates: int = 5,
    threads: int = 1,
    profile: Flag = False,
    against: Literal["hf-trainer", "nanogpt"] | None = None,
    limits: Flag = False,
    json: Flag = False,
) -> int:
    """Measure a preset's training on this machine: tokens/s, MFU, the update's bandwidth, memory, kernels.

    Parameters
    ----------
    model
        Preset to train; its vocabulary is the preset's.
    seq_len
        Tokens of a row; the preset's when left out.
    rows
        Rows of a micro-batch; the preset's when left out.
    accum
        Micro-batches of an update.
    ac
        What the backward pass recomputes, a mode of the preset's family.
    precision
        fp32 or bf16; left out: what is fast on the device, as for a new line; in a comparison every such one.
    ema
        Keep a moving average of the weights.
    compile
        What torch compiles; in a comparison it adds contenders: cross_entropy one, model that and one more.
    fast
        Let operators of a GPU add in any order; lines are exact unless run.json says fast.
    device
        cpu, cuda or cuda:N; a GPU if there is one.
    updates
        Updates that are timed.
    threads
        CPU threads; a comparison has one.
    profile
        Write a chrome trace of an update into the current folder.
    against
        Compare with another trainer, on a CPU, on the same weights and rows.
    limits
        Print the least time on known GPUs, and measure nothing.
    json
        Print one JSON value.
    """
    problems = [] if updates >= 1 else [f"--updates {updates}: expected at least 1"]
    if not 1 <= threads <= MOST_THREADS:
        problems.append(f"--threads {threads}: expected 1 to {MOST_THREADS}")
    if device is not None and not re.fullmatch(r"cpu|cuda(:\d{1,4})?", device):
        problems.append(f"--device {device}: expected cpu, cuda or cuda:N")
    if limits and (against or profile):
        problems.append("--limits measures nothing: leave out --against and --profile")
    if against and profile:
        problems.append("--against and --profile are two measurements: leave out one")
    if problems:
        raise Refused(problems)
    load_host()
    if not limits and (problem := no_compiler(compile)):
        raise Refused(f"--compile {compile}: {problem}")
    if against and (family := find_preset(model).family) != "llama":
        raise Refused(f"--against {against}: {model} is a {family}; they train Llamas alone")
    import torch

    from trainer_core.engine.assemble import fast_precision
    from trainer_core.measure import bench as measure
    from trainer_core.measure import bench_text as text
    from trainer_core.measure.throughput import preset_workload

    torch.set_num_threads(threads)
    on_cpu = against or limits or not torch.cuda.is_available()
    where = device or ("cpu" if on_cpu else "cuda")
    workload = preset_workload(
        model,
        seq_len=seq_len,
        rows=rows,
        accum=accum,
        ac=ac,
        precision=precision or fast_precision(torch.device(where)),
        ema=ema,
        compile=compile,
        exactness="fast" if fast else "exact",
        device=where,
    )
    if limits:
        found = measure.bench_limits(workload)
        shown = text.limits_text
    elif against:
        found = measure.bench_against(workload, against, precision=precision, rounds=updates)
        shown = text.against_text
    else:
        name = f"bench-{model}-{workload.rows}x{workload.seq_len}.trace.json"
        found = measure.bench(workload, updates=updates, trace=Path(name) if profile else None)
        shown = text.bench_text
    print_json(found) if json else say(shown(found))
    return 0
