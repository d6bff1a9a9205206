"""CUDA graphs, the arena and kernels on a real GPU: `python tests/gpu/capture.py`, about two minutes.

Needs torch, triton, numpy and safetensors. Prints one table; exits 1 when a check misses, 2 without a GPU.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from tests.gpu import arena_checks, kernel_checks
from tests.gpu.machine import Check, Machine, Run, gib, script
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.gpu.arena import GIB
from trainer_core.gpu.devices import GpuMemory


def preparing_moves_no_bit(machine: Machine) -> tuple[bool, str]:
    with Run(machine, machine.graphs()) as run:
        before = run.bits()
        run.step.prepare(machine.shapes, machine.shapes)
        return run.bits() == before, f"{2 * len(machine.shapes) + 2} graphs"


def replays_equal_eager(machine: Machine) -> tuple[bool, str]:
    """Two lengths, validation after every update."""
    eager, results = Run(machine, EagerReplay()), []
    wanted = eager.train(range(machine.updates), lag=0)
    with Run(machine, machine.graphs()) as graphs:
        for update in range(machine.updates):
            results += graphs.train(range(update, update + 1))
            graphs.validate()
        same = graphs.bits() == eager.bits() and results == wanted
    moved = len({result.loss for result in results}) == len({r.grad_norm for r in results}) == len(results)
    losses = f"losses {results[0].loss:.4f} to {results[-1].loss:.4f}"
    return same and moved, f"{machine.updates} updates bit for bit, {losses}"


def late_results_are_the_same(machine: Machine) -> tuple[bool, str]:
    seen = []
    for lag in (0, 1):
        with Run(machine, machine.graphs()) as run:
            seen.append((run.train(range(machine.updates), lag), run.bits()))
    return seen[0] == seen[1], "lag 0 and 1"


def a_bad_gradient_is_skipped(machine: Machine) -> tuple[bool, str]:
    with Run(machine, machine.graphs()) as run:
        run.train(range(3))
        before = run.bits()
        for planted in (torch.nan, torch.inf, -torch.inf):
            run.plant.fill_(planted)
            (result,) = run.train(range(3, 4))
            if not result.skipped:
                return False, f"{planted} was applied"
        after = run.bits()
        counted = run.state.counters.tolist()
        run.plant.zero_()
        (result,) = run.train(range(4, 5))
    same = all(after[name] == before[name] for name in before if name != "counters")
    return same and counted == [3, 3, 3] and not result.skipped, "nan, inf and -inf, then a good one"


def release_and_capture_again(machine: Machine) -> tuple[bool, str]:
    with Run(machine, machine.graphs()) as plain:
        plain.train(range(8))
    after = []
    with Run(machine, machine.graphs()) as run:
        for update in range(0, 8, 2):
            run.train(range(update, update + 2))
            run.validate()
            run.step.release()
            after.append(machine.devices.memory(0))
    good = run.bits() == plain.bits() and _nothing_is_lost(after[1:])
    return good, f"{gib(after[-1].free)} free after each release"


def failed_captures_hold_nothing(machine: Machine) -> tuple[bool, str]:
    calls = 0

    def reads(ids: Tensor, total: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        held = machine.devices.allocate(0, 1 << 30)
        # After two rehearsals comes the capture, which may not read.
        return total * total.item() if calls % 3 == 0 and held is not None else total

    before, after = machine.free, []
    run = Run(machine, machine.graphs(), reads)
    for _ in range(machine.failures):
        with suppress(RuntimeError):
            run.step.prepare(machine.shapes[:1])
        after.append(machine.devices.memory(0))
    good = calls == 3 * machine.failures and after[0].free > before - GIB and _nothing_is_lost(after)
    return good, f"{gib(after[0].free)} free after 1, {gib(after[-1].free)} after {len(after)} failures"


def _nothing_is_lost(after: list[GpuMemory]) -> bool:
    """What tensors and pools take is known to the byte; the driver's own may move a little."""
    return len({memory.ours for memory in after}) == 1 and after[0].free - after[-1].free <= 16 << 20


CHECKS: tuple[Check, ...] = (
    preparing_moves_no_bit,
    replays_equal_eager,
    late_results_are_the_same,
    a_bad_gradient_is_skipped,
    release_and_capture_again,
    failed_captures_hold_nothing,
    *arena_checks.CHECKS,
    *kernel_checks.CHECKS,
)


if __name__ == "__main__":
    sys.exit(script(CHECKS))
