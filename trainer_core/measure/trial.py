"""One shape measured: `python -m trainer_core.measure.trial PARENT_PID`, a request on stdin, then an answer.

A process of its own, because a shape that does not fit may end it, and because the peak of a process is only
its own when nothing was measured in it before. It trains a few updates of the line's model on random tokens,
with the engine that the line would get, and touches no file of the line.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer_core.engine.assemble import line_device, make_step
from trainer_core.engine.determinism import exactness_of
from trainer_core.engine.step import Step, UpdateScalars
from trainer_core.errors import NstrainError
from trainer_core.host import load_host
from trainer_core.line.config import RunConfig, parse_run
from trainer_core.line.parent import end_with_parent
from trainer_core.measure.candidates import Candidate, rows_of_updates
from trainer_core.measure.device import described
from trainer_core.measure.memory import out_of_memory, proc_sizes, total_and_free
from trainer_core.measure.shapes import evaluation_rows, micro_rows
from trainer_core.measure.throughput import wait_for
from trainer_core.models.registry import build

MOST_UPDATES = 20
"""Updates that are measured at most."""

Clock = Callable[[], float]


def look_at(device: torch.device) -> dict[str, Any]:
    """What a shape can use here: `kind`, `name`, `total_bytes`, and `free_bytes` beside this process."""
    total, free = total_and_free(device)
    return {**described(device).model_dump(), "total_bytes": total, "free_bytes": free}


def measure(config: RunConfig, shape: Candidate, device: torch.device, budget: float) -> dict[str, Any]:
    """`tokens_per_second` of whole updates and `peak_bytes` of this process on the device.

    The updates take about `budget` seconds together; one is measured whatever it takes.
    """
    torch.set_num_threads(config.threads)
    model = build(config.model.family, config.model.config, config.model.vocab_size, config.seed)
    _, step = make_step(
        model,
        device=device,
        precision=config.precision,
        ema=config.ema is not None,
        recompute={shape.length: shape.ac},
        compile=config.compile,
    )
    sizes = micro_rows(config, shape)
    random = np.random.default_rng(0)
    rows = [
        random.integers(config.model.vocab_size, size=(size, shape.length + 1), dtype=np.int64)
        for size in sizes
    ]
    with exactness_of(config.exactness):
        evaluations = [(evaluation_rows(config, shape), shape.length)]
        step.prepare([(size, shape.length) for size in sizes], evaluations)
        seconds, tokens = _time_updates(step, config, shape, rows, device, budget)
    return {"tokens_per_second": tokens / seconds, "peak_bytes": _peak(device)}


def _time_updates(
    step: Step,
    config: RunConfig,
    shape: Candidate,
    rows: Sequence[np.ndarray[Any, Any]],
    device: torch.device,
    budget: float,
) -> tuple[float, int]:
    """Seconds and tokens of the quickest update: the least disturbed one."""
    optimizer = config.optimizer
    scalars = UpdateScalars(
        lr=optimizer.min_lr,
        weight_decay=optimizer.weight_decay,
        clip=optimizer.clip,
        beta1=optimizer.betas[0],
        beta2=optimizer.betas[1],
        eps=optimizer.eps,
    )
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    step.update(rows, scalars)  # every shape is captured, every library has what it sets up at first use
    one = _seconds(clock, device, lambda: step.update(rows[:1], scalars))
    # The line's smallest update; where it is long, as much of it as the time allows: the norm and the update
    # that come with every so many tokens are then small beside them.
    count = rows_of_updates(config.spans(), shape.length)[0]
    whole = max(1, min(count // len(rows[0]), int(budget / max(one, 1e-6))))
    micro = [rows[0]] * whole
    spent, quickest = 0.0, float("inf")
    for _ in range(MOST_UPDATES):
        seconds = _seconds(clock, device, lambda: step.update(micro, scalars))
        quickest, spent = min(quickest, seconds), spent + seconds
        if spent >= budget:
            break
    return quickest, sum(len(part) for part in micro) * shape.length


def _seconds(clock: Clock, device: torch.device, work: Callable[[], object]) -> float:
    """Seconds of `work` until the device has done it."""
    wait_for(device)
    start = clock()
    work()
    wait_for(device)
    return clock() - start


def _peak(device: torch.device) -> int:
    """Most memory that this process has used on the device.

    On a GPU the arena holds nearly all of it, so that a shape runs out here as it would in training; counted
    is what is in use.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return proc_sizes("self/status")["VmHWM"]


def _stay_within(room: int) -> None:
    """On a CPU, an allocation beyond `room` bytes fails in this process instead of ending another one."""
    used = proc_sizes("self/status")["VmData"]
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = used + room if hard == resource.RLIM_INFINITY else min(used + room, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request: what `look_at` or `measure` says, or `problem`."""
    device = line_device()
    if request["what"] == "device":
        return look_at(device)
    config = parse_run(request["run"], Path("run.json"))
    try:
        if device.type == "cpu":
            _stay_within(request["room_bytes"])
        return measure(config, Candidate(**request["shape"]), device, request["seconds"])
    except Exception as error:
        if out_of_memory(error):
            return {"problem": "out of memory"}
        if isinstance(error, NstrainError):
            return {"problem": str(error)}
        raise


def main() -> None:
    """One request, one answer: the last line of stdout."""
    end_with_parent(int(sys.argv[1]))
    load_host()
    print(json.dumps(answer(json.loads(sys.stdin.read()))), flush=True)


if __name__ == "__main__":
    main()
