"""The fused update and norm on a real GPU: `python tests/gpu/update.py`, about a minute.

Needs torch, triton, numpy and safetensors. Prints one table; exits 1 when a check misses, 2 without a GPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor, nn

from tests.gpu.machine import Check, Machine, script
from trainer_core.engine.flat import FlatState, flat_state
from trainer_core.engine.layout import ParamGroup
from trainer_core.engine.step import Step, UpdateResult, UpdateScalars
from trainer_core.kernels import adamw
from trainer_core.measure.limits import refuse_impossible, update_bytes_per_parameter
from trainer_core.measure.peaks import GpuPeaks
from trainer_core.measure.throughput import TimedBackend

BAR = 0.8
"""Share of the memory's peak rate that norm and update together must reach."""

TOLERANCE = 2e-6
"""Largest difference from the reference, relative to the largest element of a buffer, after ten updates."""

SMALL = ((300, 1000), (1000,), (77, 13), (5,))
"""Shapes of parameters of which none fills its blocks."""

ROWS = np.full((2, 3), 1)
"""Rows with four targets, so that dividing by their number and multiplying again is exact."""


class Given(nn.Module):
    """Parameters by layer, whose gradients are those that were given, in every update."""

    def __init__(self, shapes: tuple[tuple[int, ...], ...], device: torch.device) -> None:
        super().__init__()
        values = (torch.empty(shape, device=device).uniform_(-0.05, 0.05) for shape in shapes)
        self.layers = nn.ParameterList(values)
        self.grads: list[Tensor | None] = [None] * len(shapes)

    def give(self, seed: int) -> None:
        """Gradients from 1e-3 of a normal one to 1."""
        generator = torch.Generator().manual_seed(seed)
        for i, param in enumerate(self.layers):
            grad = torch.randn(param.shape, generator=generator) * 10.0 ** (i % 4 - 3)
            self.grads[i] = grad.to(param.device)

    def loss(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        count = torch.full((), targets.numel(), device=targets.device)
        pairs = zip(self.layers, self.grads, strict=True)
        terms = [(param.float() * grad).sum() for param, grad in pairs if grad is not None]
        return count * sum(terms, self.layers[-1].float().sum() * 0), count

    def param_groups(self) -> list[ParamGroup]:
        named = list(self.named_parameters())
        matrices = [(name, param) for name, param in named if param.ndim > 1]
        gains = [(name, param) for name, param in named if param.ndim == 1]
        return [
            ParamGroup(name="proj", decay=True, lr_mult=1.0, params=matrices),
            ParamGroup(name="norm", decay=False, lr_mult=1.0, params=gains),
        ]

    def layer_label(self, name: str) -> str:
        return name.replace(".", "")


class Updates:
    """Updates of given parameters, with an average and a bf16 copy of them."""

    def __init__(
        self,
        machine: Machine,
        shapes: tuple[tuple[int, ...], ...],
        optimizer: adamw.AdamWUpdate,
    ) -> None:
        torch.manual_seed(0)
        self.model = Given(shapes, machine.device)
        self.state: FlatState = flat_state(self.model, machine.device, ema=True, shadow=torch.bfloat16)
        self.timed = TimedBackend(machine.graphs(), machine.device)
        self.step = Step(
            model_loss=self.model.loss, state=self.state, backend=self.timed, optimizer=optimizer
        )

    def __enter__(self) -> Updates:
        return self

    def __exit__(self, *_: object) -> None:
        self.step.release()

    def run(self, updates: int) -> list[UpdateResult]:
        return [
            self.step.update([ROWS], UpdateScalars(lr=1e-3 * (1 + i), weight_decay=0.1, ema_weight=0.1))
            for i in range(updates)
        ]

    def tensors(self) -> dict[str, Tensor]:
        assert self.state.W is not None
        return {**self.state.state_tensors(), "shadow": self.state.W}


def the_update_equals_the_reference(machine: Machine) -> tuple[bool, str]:
    seen = []
    for optimizer in (machine.optimizer, adamw.update_reference):
        with Updates(machine, SMALL, optimizer) as updates:
            updates.model.give(1)
            updates.run(10)
            seen.append({name: tensor.double().cpu() for name, tensor in updates.tensors().items()})
    ours, wanted = seen
    off = {
        name: float((ours[name] - value).abs().max() / value.abs().max()) for name, value in wanted.items()
    }
    bounds = {name: 2.0**-8 if name == "shadow" else TOLERANCE for name in off}
    worst = max(off, key=lambda name: off[name] / bounds[name])
    moved = all(bool(value.any()) for value in wanted.values())
    return moved and all(off[name] <= bounds[name] for name in off), f"{worst} off by {off[worst]:.1e}"


def the_norm_is_that_of_float64(machine: Machine) -> tuple[bool, str]:
    with Updates(machine, SMALL, machine.optimizer) as updates:
        updates.model.give(1)
        (result,) = updates.run(1)
        # A weight in bf16 gets its gradient in bf16; from there on all is wider.
        grads = [grad.bfloat16().double() for grad in updates.model.grads if grad is not None]
        squares = [float(grad.square().sum()) for grad in grads]
    wanted = [sum(squares) ** 0.5, *(square**0.5 for square in squares)]
    labels = [f"layers{i}" for i in range(len(squares))]
    found = [result.grad_norm, *(result.norms[label] for label in labels)]
    off = max(abs(a / b - 1) for a, b in zip(found, wanted, strict=True))
    return off <= 1e-6, f"{len(labels)} layers and the whole, off by {off:.1e}"


def a_bad_element_moves_nothing(machine: Machine) -> tuple[bool, str]:
    with Updates(machine, SMALL, machine.optimizer) as updates:
        updates.model.give(1)
        updates.run(2)
        before = {name: tensor.clone() for name, tensor in updates.tensors().items()}
        grad = updates.model.grads[0]
        assert grad is not None
        kept = grad[7, 5].clone()
        for planted in (torch.nan, torch.inf, -torch.inf):
            grad[7, 5] = planted
            (result,) = updates.run(1)
            if not result.skipped or updates.state.G.any():
                return False, f"{planted} was applied, or left in the gradient"
        same = all(torch.equal(tensor, before[name]) for name, tensor in updates.tensors().items())
        grad[7, 5] = kept
        (result,) = updates.run(1)
    return same and not result.skipped, "nan, inf and -inf, then a good one"


def the_update_is_near_the_bandwidth(machine: Machine) -> tuple[bool, str]:
    """Norm and update of many parameters by the device's clock; gradients of zero are as many bytes."""
    layers = 16
    shapes = [(machine.parameters // layers // 1024, 1024)] * layers
    with Updates(machine, (*shapes, (1024,)), machine.optimizer) as updates:
        updates.run(3)
        machine.wait()
        updates.timed.take_seconds()
        results = updates.run(10)
        machine.wait()
        seconds = updates.timed.take_seconds()
        num = updates.state.layout.total
    if any(result.skipped for result in results):
        return False, "an update was skipped"
    took = (seconds["norm"] + seconds["update"]) / len(results)
    return judge_bandwidth(num * update_bytes_per_parameter(ema=True, shadow=True), took, machine.peaks)


def judge_bandwidth(num_bytes: int, seconds: float, peaks: GpuPeaks | None) -> tuple[bool, str]:
    """Whether bytes in seconds reach the bar; without a known peak nothing can be shown."""
    rate = num_bytes / seconds
    said = f"{num_bytes / 1e9:.2f} GB in {1e3 * seconds:.2f} ms, {rate / 1e12:.3f} TB/s"
    if peaks is None:
        return False, f"{said}; no peak is known of this device"
    share = rate / peaks.bandwidth
    refuse_impossible(peaks.name, {"the update's bandwidth": share})
    return share >= BAR, f"{said}, {share:.1%} of {peaks.name}'s peak (bar {BAR:.0%})"


CHECKS: tuple[Check, ...] = (
    the_update_equals_the_reference,
    the_norm_is_that_of_float64,
    a_bad_element_moves_nothing,
    the_update_is_near_the_bandwidth,
)


if __name__ == "__main__":
    sys.exit(script(CHECKS))
