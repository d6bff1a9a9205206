"""The one place that makes an engine: flat state, backend and step for a model on a device.

A line, a measurement and a GPU script of one configuration get the same engine from here, so that what is
measured is what trains. Knows devices and precisions; knows no file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Literal, Protocol

import torch
from torch import Tensor

from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.backends.protocol import GraphBackend
from trainer_core.engine.flat import FlatState, Trainable, flat_state
from trainer_core.engine.step import Step
from trainer_core.kernels.cross_entropy import fused
from trainer_core.kernels.processor import has_bf16_matmul
from trainer_core.kernels.torch_compile import compiled

Precision = Literal["fp32", "bf16"]
"""fp32: the model computes on the parameters themselves; bf16: on a rounded shadow of them."""

SHADOWS: Mapping[Precision, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16}
"""What the model computes in, where that is not P itself."""

Compile = Literal["none", "cross_entropy", "model"]
"""What torch's compiler makes on a CPU: nothing, the head's loss between its products, or the whole loss."""


class Learner(Trainable, Protocol):
    """A model with a loss, as the engine trains it."""

    def loss(self, ids: Tensor, targets: Tensor, ac: str) -> tuple[Tensor, Tensor]:
        """Summed loss and number of targets of ids and targets [R, L]; `ac` names what is recomputed."""
        ...


def make_step(
    model: Learner,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    ema: bool = False,
    recompute: Mapping[int, str],
    compile: Compile = "none",
    seed: int = 0,
    wrap: Callable[[GraphBackend], GraphBackend] = lambda backend: backend,
) -> tuple[FlatState, Step]:
    """The flat state that the model's parameters become views of, and the step over it.

    `recompute` gives the recomputation of each row length that is trained; `compile` has torch compile for
    every shape of rows; `seed` is that of dropout; `wrap` may put a stopwatch around the backend. The state
    is in `device`'s memory, P in fp32 whatever the precision.
    """
    device = _with_index(torch.device(device))
    state = flat_state(model, device, ema=ema, shadow=SHADOWS[precision])
    loss = compiled(model.loss) if compile == "model" else model.loss
    head = nullcontext if compile == "none" else fused

    def model_loss(ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        with head():
            return loss(ids, targets, recompute[ids.shape[1]])

    return state, Step(model_loss=model_loss, state=state, backend=wrap(choose_backend(device)), seed=seed)


def line_device() -> torch.device:
    """Where lines of this host are trained: on its GPU, where it has one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fast_precision(device: torch.device) -> Precision:
    """bf16 where products of bf16 matrices run on instructions of their own."""
    return "bf16" if device.type == "cuda" or has_bf16_matmul() else "fp32"


def choose_backend(device: torch.device) -> GraphBackend:
    """Captured graphs where there are any."""
    if device.type != "cuda":
        return EagerReplay()
    from trainer_core.engine.backends.cuda_graphs import CudaGraphs
    from trainer_core.engine.backends.cuda_runtime import TorchCuda
    from trainer_core.gpu.arena import Arena
    from trainer_core.gpu.devices import TorchDevices

    return CudaGraphs(TorchCuda(device), Arena(TorchDevices(), device.index))


def _with_index(device: torch.device) -> torch.device:
    """A GPU by its number, which streams and pools ask for."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
