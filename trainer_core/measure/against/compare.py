"""A comparison of trainers: alternated in one process, one thread each, CPU seconds, each by its best update.

Never wall time: the machine may be shared. The load of a machine disturbs whoever runs, so all of them take
turns, and the best update is the one that was disturbed least. Losses are compared first: two trainers that
disagree about them do not do the same work, and nothing is then said about their speed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trainer_core.engine.assemble import Compile, Precision
from trainer_core.errors import Refused
from trainer_core.measure.against.contender import MakeContender, nstrain
from trainer_core.measure.against.hf_trainer import HfTrainer
from trainer_core.measure.against.nanogpt import NanoGpt
from trainer_core.measure.throughput import Workload

THEIRS: Mapping[str, Mapping[str, MakeContender]] = {
    "hf-trainer": {
        "hf-trainer-fp32": partial(HfTrainer, bf16=False),
        "hf-trainer-bf16": partial(HfTrainer, bf16=True),
    },
    "nanogpt": {
        "nanogpt-bf16": partial(NanoGpt, bf16=True),
    },
}
"""What `--against` takes, and the contenders that it means."""

TOLERANCE = 1e-3
"""Largest difference of the losses of the first updates, in nats."""

COMPARED = 2
"""Updates whose losses must agree: the second is one that the first has changed the weights for."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one contender did."""

    cpu_seconds: float
    """CPU seconds of its best update."""
    tokens_per_cpu_second: float
    """Tokens of an update over them."""
    losses: tuple[float, ...]
    """Mean loss of each update, before it, in nats."""


SUFFIXES: Mapping[Compile, str] = {"none": "", "cross_entropy": "-ce-compiled", "model": "-compiled"}
"""What our contenders are called after what is compiled, the least of it first."""


def ours(precision: Precision, *, compile: Compile) -> dict[str, MakeContender]:
    """Our contenders of a precision: nothing compiled, and with all that is up to `compile`."""
    most = list(SUFFIXES).index(compile)
    return {
        f"nstrain-{precision}{suffix}": nstrain(precision, each)
        for each, suffix in list(SUFFIXES.items())[: most + 1]
    }


def compare(
    workload: Workload, contenders: Mapping[str, MakeContender], *, rounds: int = 5
) -> dict[str, Result]:
    """One untimed update of each, then `rounds` timed ones in turn. Raises Refused when losses differ."""
    if torch.device(workload.device).type != "cpu":
        raise Refused(f"--against: it compares CPU seconds; leave out --device {workload.device}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    running = {}
    try:
        batches = workload.batches(1 + rounds)
        for name, make in contenders.items():
            running[name] = make(workload, batches)
        losses: dict[str, list[float]] = {name: [running[name].update()] for name in contenders}
        best = dict.fromkeys(contenders, float("inf"))
        gc.collect()
        gc.freeze()  # what is alive now need not be looked at again before every update
        for index in range(rounds):
            for name, contender in running.items():
                gc.collect()
                start = time.process_time()
                losses[name].append(contender.update())
                best[name] = min(best[name], time.process_time() - start)
            if index == COMPARED - 2:
                refuse_other_losses(losses)
    finally:
        gc.unfreeze()
        for contender in running.values():
            contender.close()
        torch.set_num_threads(threads)
    return {
        name: Result(
            cpu_seconds=best[name],
            tokens_per_cpu_second=workload.tokens / best[name],
            losses=tuple(losses[name]),
        )
        for name in contenders
    }


def refuse_other_losses(losses: Mapping[str, list[float]]) -> None:
    """Raises Refused with every contender whose losses so far are not those of the first one."""
    first = next(iter(losses))
    problems = [
        f"--against: {name} does not train what {first} does: losses {_spelt(found)} and "
        f"{_spelt(losses[first])} differ by more than {TOLERANCE}, so their speeds are not compared"
        for name, found in losses.items()
        if not all(abs(a - b) <= TOLERANCE for a, b in zip(found, losses[first], strict=True))
    ]
    if problems:
        raise Refused(problems)


def ratios(results: Mapping[str, Result]) -> dict[str, dict[str, float]]:
    """How often faster each of ours is than each other contender, in tokens per CPU second."""
    speed = {name: result.tokens_per_cpu_second for name, result in results.items()}
    return {
        name: {other: speed[name] / speed[other] for other in results if not other.startswith("nstrain-")}
        for name in results
        if name.startswith("nstrain-")
    }


def as_json(results: Mapping[str, Result]) -> dict[str, Any]:
    """Plain values of a comparison."""
    return {
        "contenders": {name: dict(vars(result)) for name, result in results.items()},
        "ratios": ratios(results),
    }


def _spelt(losses: list[float]) -> str:
    return " and ".join(f"{loss:.4f}" for loss in losses)
