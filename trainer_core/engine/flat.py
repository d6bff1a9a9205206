"""The training state: flat buffers of parameters, gradients and moments, and the optimizer's counters.

A bound module's parameters and their .grad are views of P and G, so autograd accumulates in place and nothing
is gathered or scattered. Padding is zero and stays zero. Everything that a resume needs is in `state_tensors`
and `scalars`; G is zero between updates and is never saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from trainer_core.engine.layout import Layout, ParamGroup


class Trainable(Protocol):
    """What the engine needs to know of a model, which is an nn.Module besides."""

    def param_groups(self) -> Sequence[ParamGroup]:
        """Groups of the optimizer, in the order of the layout."""
        ...

    def layer_label(self, name: str) -> str:
        """Layer label of a parameter by its full name."""
        ...


class FlatState:
    """P, G, M, V and the counters of one training run on one device."""

    def __init__(
        self, layout: Layout, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.layout = layout
        self.device = torch.device(device)
        self.dtype = dtype
        self.P, self.G, self.M, self.V = (
            torch.zeros(layout.total, device=self.device, dtype=dtype) for _ in range(4)
        )
        self.beta_products = torch.ones(2, device=self.device, dtype=torch.float64)
        """b1^t and b2^t over the applied updates: they move only when an update is applied."""
        self.counters = torch.zeros(3, device=self.device, dtype=torch.int64)
        """Applied updates, skipped updates in all, skipped updates since the last applied one."""
        self._bound: list[tuple[nn.Parameter, Tensor, Tensor]] = []

    def bind(self, module: nn.Module) -> None:
        """Moves the module's parameters into P; from here on they and their gradients are views."""
        module.to(self.device)
        params = dict(module.named_parameters())
        missing = {slot.name for slot in self.layout.slots} ^ params.keys()
        assert not missing, f"layout and module differ in {sorted(missing)}"
        self._bound = []
        for slot in self.layout.slots:
            param = params[slot.name]
            assert param.dtype == self.dtype, f"{slot.name} is {param.dtype}, the state is {self.dtype}"
            assert tuple(param.shape) == slot.shape, slot.name
            part = slice(slot.offset, slot.offset + slot.numel)
            weight, grad = self.P[part].view(slot.shape), self.G[part].view(slot.shape)
            weight.copy_(param.detach())
            param.data = weight
            param.grad = grad
            self._bound.append((param, weight, grad))

    def unbound(self) -> list[str]:
        """What is no longer a view of P or G, in words, by parameter."""
        found = []
        for (param, weight, grad), slot in zip(self._bound, self.layout.slots, strict=True):
            if not _same_place(param, weight):
                found.append(f"{slot.name} left the flat parameters")
            if param.grad is None or not _same_place(param.grad, grad):
                found.append(f"the gradient of {slot.name} left the flat gradients")
        return found

    def assert_bound(self) -> None:
        """Every parameter and gradient is still its view of P and G."""
        found = self.unbound()
        assert not found, found

    def buffers(self) -> tuple[Tensor, ...]:
        """Every flat buffer."""
        return self.P, self.G, self.M, self.V

    def state_tensors(self) -> dict[str, Tensor]:
        """The buffers of a checkpoint by the name of their file; loading copies into them in place."""
        return {"params": self.P, "exp_avg": self.M, "exp_avg_sq": self.V}

    def scalars(self) -> dict[str, str | int]:
        """The rest of a checkpoint, exact: floats as hexadecimal strings."""
        beta1, beta2 = self.beta_products.tolist()
        applied, total, run = self.counters.tolist()
        return {
            "beta1_product": float(beta1).hex(),
            "beta2_product": float(beta2).hex(),
            "applied_updates": int(applied),
            "skipped_total": int(total),
            "skipped_run": int(run),
        }

    def load_scalars(self, scalars: Mapping[str, str | int]) -> None:
        """Takes back what `scalars` gave; other keys are ignored."""
        products = [float.fromhex(str(scalars[key])) for key in ("beta1_product", "beta2_product")]
        counts = [int(scalars[key]) for key in ("applied_updates", "skipped_total", "skipped_run")]
        self.beta_products.copy_(torch.tensor(products, dtype=torch.float64))
        self.counters.copy_(torch.tensor(counts, dtype=torch.int64))
        self.G.zero_()


def flat_state(
    model: Trainable, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> FlatState:
    """Lays out, allocates and binds a model."""
    assert isinstance(model, nn.Module)
    state = FlatState(Layout.build(model.param_groups(), model.layer_label), device, dtype)
    state.bind(model)
    return state


def _same_place(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors begin at one element of one storage; on the meta device pointers would not tell."""
    same_storage = a.untyped_storage()._cdata == b.untyped_storage()._cdata
    return same_storage and a.storage_offset() == b.storage_offset()
