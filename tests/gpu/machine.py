"""What the GPU scripts share: the machine that they check, a run to train on it, and the table they print."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer_core.engine.backends.cuda_graphs import CudaGraphs
from trainer_core.engine.backends.cuda_runtime import CudaRuntime, TorchCuda
from trainer_core.engine.backends.protocol import GraphBackend
from trainer_core.engine.flat import FlatState, flat_state
from trainer_core.engine.step import Step, UpdateResult, UpdateScalars
from trainer_core.gpu.arena import GIB, SLACK, Arena
from trainer_core.gpu.devices import Devices, TorchDevices
from trainer_core.kernels import adamw
from trainer_core.measure.peaks import GpuPeaks, known_gpu
from trainer_core.models.registry import build


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the checks run."""

    device: torch.device
    """The GPU."""
    devices: Devices
    """Its memory, as GPU 0."""
    cuda: CudaRuntime
    """The one stream on it that all runs share: libraries keep memory for each stream for ever."""
    neighbour: Callable[[int], AbstractContextManager[None]]
    """Inside, another process holds that many bytes of its memory."""
    optimizer: adamw.AdamWUpdate
    """The update."""
    model: str = "llama-cpu"
    """Preset that is trained."""
    vocab: int = 4096
    """Its vocabulary."""
    shapes: tuple[tuple[int, int], ...] = ((8, 128), (4, 512))
    """Rows and row length of the micro-batches."""
    updates: int = 20
    """Updates of a comparison."""
    failures: int = 20
    """Captures that fail in a row."""
    slack: int = SLACK
    """What the arena leaves."""
    peaks: GpuPeaks | None = None
    """What the GPU can do at most, where that is known."""
    parameters: int = 1 << 30
    """Parameters of an update whose bandwidth is measured."""
    peak: Callable[[], int]
    """The most memory that this process had in use since the arena was held."""
    large: str = "llama-1p3b"
    """Preset whose speed is measured."""
    large_shape: tuple[int, int] = (4096, 4)
    """Its row length and rows."""
    accum: int = 8
    """Micro-batches of its updates."""
    tuned: str = "llama-150m"
    """Preset whose rows are tuned."""
    tuned_shape: tuple[int, int] = (2048, 16)
    """Its row length, and rows to begin with."""

    @property
    def free(self) -> int:
        """Free bytes now."""
        return self.devices.memory(0).free

    def wait(self) -> None:
        """Until the GPU is idle."""
        self.cuda.synchronize()

    def arena(self) -> Arena:
        return Arena(self.devices, 0, slack=self.slack)

    def graphs(self, arena: Arena | None = None) -> CudaGraphs:
        return CudaGraphs(self.cuda, arena or self.arena())


def gpu_machine() -> Machine:
    """The first GPU of this machine."""
    device = torch.device("cuda", 0)
    return Machine(
        device=device,
        devices=TorchDevices(),
        cuda=TorchCuda(device),
        neighbour=_neighbour,
        optimizer=adamw.choose(device),
        peak=lambda: torch.cuda.max_memory_allocated(device),
        peaks=known_gpu(torch.cuda.get_device_name(device)),
    )


@contextmanager
def _neighbour(num_bytes: int) -> Iterator[None]:
    code = (
        "import torch\n"
        f"held = torch.empty({num_bytes}, dtype=torch.uint8, device='cuda:0')\n"
        "print('held', flush=True)\n"
        "input()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"held\n", "no neighbour came up"
        yield
    finally:
        process.communicate(b"\n")


Work = Callable[[Tensor, Tensor], Tensor]
"""What a run does in its loss beside the model: inputs and the sum so far to the sum."""


class Run:
    """A small Llama in training; `plant` is added to one gradient, so NaN makes an update to skip.

    Released at the end of a `with`, so that no other finds the arena held.
    """

    def __init__(self, machine: Machine, backend: GraphBackend, work: Work | None = None) -> None:
        model = build(machine.model, None, machine.vocab, 0)
        self.state: FlatState = flat_state(model, machine.device)
        self.plant = torch.zeros((), device=machine.device)
        self.machine = machine

        def loss(ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            total, count = model.loss(ids, targets)
            total = total + self.plant * model.norm.weight[0]
            return (total if work is None else work(ids, total)), count

        self.step = Step(model_loss=loss, state=self.state, backend=backend, optimizer=machine.optimizer)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.step.release()

    def rows(self, update: int, shape: tuple[int, int]) -> np.ndarray:
        return np.random.default_rng(update).integers(0, self.machine.vocab, (shape[0], shape[1] + 1))

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

    def validate(self) -> None:
        self.step.evaluate(self.rows(900, self.machine.shapes[0]))

    def bits(self) -> dict[str, bytes]:
        tensors = self.state.state_tensors() | {
            "products": self.state.beta_products,
            "counters": self.state.counters,
            "G": self.state.G,
        }
        return {name: tensor.cpu().numpy().tobytes() for name, tensor in tensors.items()}


Check = Callable[[Machine], tuple[bool, str]]
"""Whether something holds, and what was seen."""


def run_checks(checks: Sequence[Check], machine: Machine) -> bool:
    """Prints the table; whether every check held."""
    held = True
    for check in checks:
        start = time.perf_counter()
        try:
            good, detail = check(machine)
        except Exception as error:
            good, detail = False, f"{type(error).__name__}: {str(error).splitlines()[0]}"
        held &= good
        seconds = time.perf_counter() - start
        name = check.__name__.replace("_", " ")
        print(f"{'ok' if good else 'MISS':<5}{name:<40}{seconds:6.1f} s  {detail}", flush=True)
    return held


def script(checks: Sequence[Check]) -> int:
    """Exit status of a script: 0 when every check held, 1 when one did not, 2 without a GPU."""
    if not torch.cuda.is_available():
        print("no GPU")
        return 2
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}")
    return 0 if run_checks(checks, gpu_machine()) else 1


def gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
