"""The kernels' part of capture.py: operators give on a GPU what their twins give in float64, twice alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.gpu.machine import Check, Machine
from trainer_core.engine.determinism import exactness_of
from trainer_core.kernels import cross_entropy, norm
from trainer_core.kernels.attention import causal_attention, causal_attention_reference, flash
from trainer_core.kernels.cross_entropy import op as cross_entropy_op
from trainer_core.kernels.cross_entropy.reference import linear_cross_entropy_reference
from trainer_core.kernels.norm import op as norm_op
from trainer_core.kernels.norm.reference import rms_norm_reference
from trainer_core.kernels.rope import op as rope_op
from trainer_core.kernels.rope import rotate
from trainer_core.kernels.rope.reference import rotate_reference
from trainer_core.models.blocks import rope_tables

BARS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Largest difference from the twin, relative to the largest element."""

Function = Callable[..., Tensor]


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _found(function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The result, then the gradients of every input, for a pull that depends on the place."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    out = function(*leaves)
    pull = torch.linspace(-1, 1, out.numel(), dtype=torch.float64) if out.ndim else torch.ones(1)
    return [out.detach(), *torch.autograd.grad(out, leaves, pull.view(out.shape).to(out))]


def _off(machine: Machine, ours: Function, twin: Function, inputs: Sequence[Tensor]) -> float:
    """Largest difference of a result or gradient; infinite where a second run has other bits."""
    wanted = _found(twin, [t.double() for t in inputs])
    there = [t.to(machine.device) for t in inputs]
    with exactness_of("exact"):
        found, again = _found(ours, there), _found(ours, there)
    if not all(torch.equal(a, b) for a, b in zip(found, again, strict=True)):
        return torch.inf
    pairs = zip(found, wanted, strict=True)
    return max(float((a.double().cpu() - b).abs().max() / b.abs().max()) for a, b in pairs)


def _judge(machine: Machine, by_kernel: bool, off: dict[torch.dtype, float]) -> tuple[bool, str]:
    """Not off by more than the bar, and by a kernel where the machine is a GPU."""
    said = ", ".join(
        f"{str(dtype).removeprefix('torch.')} off by {value:.1e}" for dtype, value in off.items()
    )
    expected = by_kernel == (machine.device.type == "cuda")
    return expected and all(value <= BARS[dtype] for dtype, value in off.items()), said


def the_head_equals_its_twin(machine: Machine) -> tuple[bool, str]:
    """More rows than a chunk, or a vocabulary of more than a block; some rows without a target."""
    off = {}
    for dtype, n, V in ((torch.float32, 1030, 1001), (torch.bfloat16, 70, 8201)):
        targets = torch.randint(V, (n,), generator=torch.Generator().manual_seed(3))
        targets[::9] = cross_entropy.IGNORE_INDEX
        inputs = [_draw(n, 64, seed=1).to(dtype), _draw(V, 64, seed=2).div(8).to(dtype)]
        there = targets.to(machine.device)
        off[dtype] = _off(
            machine,
            lambda h, w, there=there: cross_entropy.linear_cross_entropy(h, w, there),
            lambda h, w, targets=targets: linear_cross_entropy_reference(h, w, targets),
            inputs,
        )
    return _judge(machine, cross_entropy_op.launches(inputs[0].to(machine.device)), off)


def the_norm_equals_its_twin(machine: Machine) -> tuple[bool, str]:
    off = {}
    for dtype in BARS:
        inputs = [_draw(5, 301, 1000, seed=1).to(dtype), 1 + _draw(1000, seed=2) / 4]
        off[dtype] = _off(
            machine,
            lambda x, w: norm.rms_norm(x, w, 1e-5),
            lambda x, w: rms_norm_reference(x, w, 1e-5),
            inputs,
        )
    return _judge(machine, norm_op.launches(*(t.to(machine.device) for t in inputs)), off)


def the_attention_equals_its_twin(machine: Machine) -> tuple[bool, str]:
    """With the heads where a projection leaves them."""
    inputs = [_draw(2, 301, 4, 64, seed=i).bfloat16().transpose(1, 2) for i in range(3)]
    off = {torch.bfloat16: _off(machine, causal_attention, causal_attention_reference, inputs)}
    return _judge(machine, flash.serves(*(t.to(machine.device) for t in inputs)), off)


def the_rotation_equals_its_twin(machine: Machine) -> tuple[bool, str]:
    tables = rope_tables(301, 64, 10_000.0, torch.float32)
    there = [t.to(machine.device) for t in tables]
    off, x = {}, _draw(2, 301, 4, 64, seed=1).transpose(1, 2)
    for dtype in BARS:
        off[dtype] = _off(
            machine,
            lambda x: rotate(x, *there, keep_layout=True),
            lambda x: rotate_reference(x, *tables),
            [x.to(dtype)],
        )
    return _judge(machine, rope_op.launches(x.to(machine.device), there[0]), off)


CHECKS: tuple[Check, ...] = (
    the_head_equals_its_twin,
    the_norm_equals_its_twin,
    the_rotation_equals_its_twin,
    the_attention_equals_its_twin,
)
