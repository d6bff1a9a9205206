"""CUDA graphs of a training step on a real GPU: `python tests/gpu/capture.py`, about a minute.

Needs torch, triton, numpy and safetensors. Prints one table; exits 1 when a check misses, 2 without a GPU.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor

from trainer_core.engine.backends.cuda_graphs import CudaGraphs
from trainer_core.engine.backends.cuda_runtime import CudaRuntime, TorchCuda
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.backends.protocol import GraphBackend
from trainer_core.engine.flat import FlatState, flat_state
from trainer_core.engine.step import Step, UpdateResult, UpdateScalars
from trainer_core.kernels import adamw
from trainer_core.models.registry import build

UPDATES = 20
FAILURES = 20
VOCAB = 4096


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the checks run."""

    device: torch.device
    """The GPU."""
    cuda: Callable[[], CudaRuntime]
    """A fresh runtime on it."""
    reserved: Callable[[], int]
    """Bytes that the process holds of its memory."""
    optimizer: adamw.AdamWUpdate
    """The update."""
    model: str = "llama-cpu"
    """Preset that is trained."""
    shapes: tuple[tuple[int, int], ...] = ((8, 128), (4, 512))
    """Rows and row length of the micro-batches."""


class Run:
    """A small Llama whose gradient gets `plant` added in one element; NaN makes an update to skip."""

    def __init__(self, machine: Machine, backend: GraphBackend) -> None:
        model = build(machine.model, None, VOCAB, 0)
        self.state: FlatState = flat_state(model, machine.device)
        self.plant = torch.zeros((), device=machine.device)
        self.machine = machine

        def loss(ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            total, count = model.loss(ids, targets)
            return total + self.plant * model.norm.weight[0], count

        self.step = Step(model_loss=loss, state=self.state, backend=backend, optimizer=machine.optimizer)

    def rows(self, update: int, shape: tuple[int, int]) -> np.ndarray:
        return np.random.default_rng(update).integers(0, VOCAB, (shape[0], shape[1] + 1))

    def submit(self, update: int) -> None:
        """Two micro-batches of the update's length, under a schedule in which every number changes."""
        shape = self.machine.shapes[update // 3 % len(self.machine.shapes)]
        scalars = UpdateScalars(
            lr=1e-3 * (1 + update % 7), weight_decay=0.1 + 0.01 * update, clip=0.5 + update % 3
        )
        self.step.submit([self.rows(2 * update, shape), self.rows(2 * update + 1, shape)], scalars)

    def train(self, updates: range, lag: int = 1) -> list[UpdateResult]:
        results: list[UpdateResult] = []
        for update in updates:
            self.submit(update)
            results += self.step.results(lag)
        return results + self.step.results()

    def bits(self) -> dict[str, bytes]:
        tensors = self.state.state_tensors() | {
            "products": self.state.beta_products,
            "counters": self.state.counters,
            "G": self.state.G,
        }
        return {name: tensor.cpu().numpy().tobytes() for name, tensor in tensors.items()}


Check = Callable[[Machine], tuple[bool, str]]


def preparing_moves_no_bit(machine: Machine) -> tuple[bool, str]:
    run = Run(machine, CudaGraphs(machine.cuda()))
    before = run.bits()
    run.step.prepare(machine.shapes, machine.shapes)
    same = run.bits() == before
    run.step.release()
    return same, f"{2 * len(machine.shapes) + 2} graphs"


def replays_equal_eager(machine: Machine) -> tuple[bool, str]:
    eager, graphs = Run(machine, EagerReplay()), Run(machine, CudaGraphs(machine.cuda()))
    wanted, results = eager.train(range(UPDATES), lag=0), []
    for update in range(UPDATES):
        results += graphs.train(range(update, update + 1))
        graphs.step.evaluate(graphs.rows(900 + update, machine.shapes[0]))
    same = graphs.bits() == eager.bits() and results == wanted
    moved = len({result.loss for result in results}) == len({r.grad_norm for r in results}) == UPDATES
    graphs.step.release()
    return same and moved, f"{UPDATES} updates, losses {results[0].loss:.4f} to {results[-1].loss:.4f}"


def late_results_are_the_same(machine: Machine) -> tuple[bool, str]:
    runs = [Run(machine, CudaGraphs(machine.cuda())) for _ in range(2)]
    results = [run.train(range(UPDATES), lag) for run, lag in zip(runs, (0, 1), strict=True)]
    same = results[0] == results[1] and runs[0].bits() == runs[1].bits()
    for run in runs:
        run.step.release()
    return same, "lag 0 and 1"


def a_bad_gradient_is_skipped(machine: Machine) -> tuple[bool, str]:
    run = Run(machine, CudaGraphs(machine.cuda()))
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
    run.step.release()
    same = all(after[name] == before[name] for name in before if name != "counters")
    return same and counted == [3, 3, 3] and not result.skipped, "nan, inf and -inf, then a good one"


def release_and_capture_again(machine: Machine) -> tuple[bool, str]:
    plain, run = (Run(machine, CudaGraphs(machine.cuda())) for _ in range(2))
    plain.train(range(8))
    plain.step.release()
    held = []
    for update in range(0, 8, 2):
        run.train(range(update, update + 2))
        run.step.release()
        held.append(machine.reserved())
    return run.bits() == plain.bits() and len(set(held[1:])) == 1, f"{held[-1] >> 20} MiB after each release"


def failed_captures_hold_nothing(machine: Machine) -> tuple[bool, str]:
    model = build(machine.model, None, VOCAB, 0)
    state = flat_state(model, machine.device)
    calls = 0

    def loss(ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        total, count = model.loss(ids, targets)
        if calls % 3 == 0:  # after two rehearsals comes the capture
            total = total * total.item()
        return total, count

    held = []
    for _ in range(FAILURES):
        backend = CudaGraphs(machine.cuda())
        step = Step(model_loss=loss, state=state, backend=backend, optimizer=machine.optimizer)
        try:
            step.prepare(machine.shapes[:1])
        except RuntimeError:
            held.append(machine.reserved())
        del step, backend
    good = len(held) == FAILURES and held[-1] <= held[0]
    return good, f"{held[0] >> 20} MiB after 1, {held[-1] >> 20} MiB after {len(held)} failures"


def the_pool_counts_its_users(machine: Machine) -> tuple[bool, str]:
    cuda = machine.cuda()
    cuda.open_pool()
    counts = [cuda.pool_users()]
    with cuda.active():
        graph = cuda.new_graph()
        graph.begin()
        graph.end()
        counts.append(cuda.pool_users())
        graph.reset()
        counts.append(cuda.pool_users())
        graph = cuda.new_graph()
        graph.begin()
        graph.end()
        cuda.drop_pool_user()  # what a capture that failed on an older torch needs
        counts.append(cuda.pool_users())
    cuda.close_pool()
    return counts[1:] == [counts[0] + 1, counts[0], counts[0]], " ".join(map(str, counts))


CHECKS: tuple[Check, ...] = (
    preparing_moves_no_bit,
    replays_equal_eager,
    late_results_are_the_same,
    a_bad_gradient_is_skipped,
    release_and_capture_again,
    failed_captures_hold_nothing,
    the_pool_counts_its_users,
)


def run_checks(machine: Machine) -> bool:
    """Prints the table; whether every check held."""
    held = True
    for check in CHECKS:
        start = time.perf_counter()
        try:
            good, detail = check(machine)
        except Exception as error:
            good, detail = False, f"{type(error).__name__}: {str(error).splitlines()[0]}"
        held &= good
        seconds = time.perf_counter() - start
        print(
            f"{'ok' if good else 'MISS':<5}{check.__name__.replace('_', ' '):<32}{seconds:6.1f} s  {detail}"
        )
    return held


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU")
        return 2
    device = torch.device("cuda", 0)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}")
    machine = Machine(
        device=device,
        cuda=lambda: TorchCuda(device),
        reserved=lambda: torch.cuda.memory_reserved(device),
        optimizer=adamw.choose(device),
    )
    return 0 if run_checks(machine) else 1


if __name__ == "__main__":
    sys.exit(main())
