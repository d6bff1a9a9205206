"""The machine of the GPU scripts without a GPU: a recording runtime and a simulated memory."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from tests.gpu.machine import Machine
from tests.tools.simulated_gpu import MIB, SimulatedGpu
from tests.unit.engine.fake_cuda import FakeCuda
from trainer_core.kernels import adamw


def cpu_machine(gpu: SimulatedGpu | None = None) -> Machine:
    gpu = gpu or SimulatedGpu()

    @contextmanager
    def neighbour(num_bytes: int):
        held = gpu.other_process(77, num_bytes)
        yield
        del held
        gpu.listed.clear()

    return Machine(
        device=torch.device("cpu"),
        devices=gpu,
        cuda=FakeCuda(gpu=gpu),
        neighbour=neighbour,
        optimizer=adamw.update_reference,
        model="llama-nano-cpu",
        vocab=64,
        shapes=((1, 8), (1, 12)),
        updates=3,
        failures=2,
        parameters=1 << 16,
        peak=lambda: MIB,
        large="llama-nano-cpu",
        large_shape=(16, 2),
        accum=2,
        tuned="llama-nano-cpu",
        tuned_shape=(16, 1),
    )


def table(printed: str) -> dict[str, tuple[str, str]]:
    """What a script printed: verdict and detail by check."""
    lines = printed.splitlines()
    return {line[5:45].strip(): (line[:5].strip(), line.partition(" s  ")[2]) for line in lines}
