"""Small models whose gradients a test dictates, and helpers around Step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.flat import FlatState, flat_state
from trainer_core.engine.layout import ParamGroup
from trainer_core.engine.step import Step
from trainer_core.models.base import Model
from trainer_core.models.registry import build

SHAPES = {"a.matrix": (40, 30), "b.matrix": (7, 301), "b.gain": (33,), "c.gain": (1,)}
"""Parameters of the recorded model; none fills its blocks."""


class Faulty(nn.Module):
    """An embedding, and a fault between it and the loss."""

    def __init__(self, fault: Callable[[Faulty, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(16, 4))
        self.fault = fault
        self.kept: list[Tensor] = []
        self.average: Tensor = torch.ones(())
        self.counter = torch.zeros(3, dtype=torch.int64)
        self.cpu = torch.ones(4, device="cpu")
        self.calls = 0
        self.register_buffer("mean", torch.zeros(4))

    def rows(self) -> Tensor:
        """A table without a gradient."""
        return torch.ones(16, 4, device=self.table.device)

    def loss(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        self.targets = targets
        x = self.fault(self, self.table[ids], ids)
        return x.float().square().sum(), torch.ones((), device=ids.device).sum()

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup(name="all", decay=True, lr_mult=1.0, params=[("table", self.table)])]

    def layer_label(self, name: str) -> str:
        return name


class _Dictated(torch.autograd.Function):
    """Value 1 whatever the parameters; the gradients are given, finite or not."""

    @staticmethod
    def forward(ctx, grads, *params):
        ctx.grads = grads
        return params[0].new_ones(())

    @staticmethod
    def backward(ctx, grad):
        return None, *(grad * g for g in ctx.grads)


class Recorded(nn.Module):
    """Parameters whose gradients in update i are `gradients[i]`; i is the first token id of the rows."""

    def __init__(self, gradients: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(5)
        self.a, self.b, self.c = nn.Module(), nn.Module(), nn.Module()
        for name, shape in SHAPES.items():
            owner, leaf = name.split(".")
            value = torch.randn(shape, generator=g).to(dtype) * 0.1
            setattr(getattr(self, owner), leaf, nn.Parameter(value))
        self.gradients = gradients

    def loss(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        grads = self.gradients[int(ids[0, 0])]
        count = targets.numel()
        return count * _Dictated.apply(grads, *self.parameters()), torch.tensor(count)

    def param_groups(self) -> list[ParamGroup]:
        named = list(self.named_parameters())
        matrices = [(n, p) for n, p in named if p.ndim > 1]
        gains = [(n, p) for n, p in named if p.ndim == 1]
        return [
            ParamGroup(name="proj", decay=True, lr_mult=1.0, params=matrices),
            ParamGroup(name="norm", decay=False, lr_mult=1.0, params=gains),
        ]

    def layer_label(self, name: str) -> str:
        return name.split(".")[0]


def recorded_gradients(num: int, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    """Gradients whose global norm goes from about 0.06 to 60, so that some updates clip and some do not."""
    g = torch.Generator().manual_seed(9)
    return [
        [
            torch.randn(shape, generator=g).to(dtype) * 10.0 ** (i % 4 - 3)
            for shape in (SHAPES[n] for n in ("a.matrix", "b.matrix", "b.gain", "c.gain"))
        ]
        for i in range(num)
    ]


def rows_of(update: int) -> np.ndarray:
    """Rows that make Recorded use the gradients of `update`; 4 targets, so 1 / count is exact."""
    return np.full((2, 3), update, dtype=np.int64)


def recorded_step(gradients, dtype=torch.float32, **settings) -> tuple[Recorded, FlatState, Step]:
    model = Recorded(gradients, dtype)
    state = flat_state(model, dtype=dtype)
    return model, state, Step(model_loss=model.loss, state=state, backend=EagerReplay(), **settings)


def bits(state: FlatState) -> dict[str, bytes]:
    """Everything that a resume takes over, and G."""
    more = {"products": state.beta_products, "counters": state.counters, "G": state.G}
    return {name: tensor.numpy().tobytes() for name, tensor in (state.state_tensors() | more).items()}


def nano_step(
    dtype=torch.float32, seed=0, ac="none", backend=None, **settings
) -> tuple[Model, FlatState, Step]:
    """The smallest Llama with its state and step."""
    model = build("llama-nano-cpu", None, 64, seed, dtype)
    state = flat_state(model, dtype=dtype)

    def loss(ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return model.loss(ids, targets, ac)

    return model, state, Step(model_loss=loss, state=state, backend=backend or EagerReplay(), **settings)


def token_rows(seed: int, num_rows: int = 8, length: int = 24, vocab: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, (num_rows, length + 1))
