"""The training state: flat buffers of parameters, gradients and moments, and the optimizer's counters.

A bound module's parameters and their .grad are views of P and G, so autograd accumulates in place and nothing
is gathered or scattered. With a shadow the parameters of rounded groups are views of W, which is P rounded,
and have no .grad: what autograd makes is added to G. Padding is zero and stays zero. Everything that a resume
needs is in `state_tensors` and `scalars`; G is zero between updates, W follows from P, and neither is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trainer_core.engine.layout import Layout, ParamGroup
from trainer_core.kernels.wide_gradient import sum_gradients


class Trainable(Protocol):
    """What the engine needs to know of a model, which is an nn.Module besides."""

    def param_groups(self) -> Sequence[ParamGroup]:
        """Groups of the optimizer, in the order of the layout."""
        ...

    def layer_label(self, name: str) -> str:
        """Layer label of a parameter by its full name."""
        ...


class FlatState:
    """P, G, M, V, where wanted E and W, and the counters of one training run on one device."""

    def __init__(
        self,
        layout: Layout,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        ema: bool = False,
        shadow: torch.dtype | None = None,
    ) -> None:
        self.layout = layout
        self.device = torch.device(device)
        self.dtype = dtype
        self.P, self.G, self.M, self.V = (self._flat(dtype) for _ in range(4))
        self.E = self._flat(dtype) if ema else None
        """Moving average of P; begins as P."""
        self.W = self._flat(shadow) if shadow else None
        """P in the dtype that the model computes in."""
        self.beta_products = torch.ones(2, device=self.device, dtype=torch.float64)
        """b1^t and b2^t over the applied updates: they move only when an update is applied."""
        self.counters = torch.zeros(3, device=self.device, dtype=torch.int64)
        """Applied updates, skipped updates in all, skipped updates since the last applied one."""
        self.dropout_counter = torch.zeros(3, device=self.device, dtype=torch.int64)
        """Seed, number of the update, number of the micro-batch in it: what dropout is a hash of."""
        self._bound: list[tuple[nn.Parameter, Tensor, Tensor | None]] = []
        self._hooks: list[Any] = []

    def bind(self, module: nn.Module) -> None:
        """Moves the module's parameters into P; from here on they and their gradients are views.

        A module that has a `dropout_counter` is given ours.
        """
        module.to(self.device)
        params = dict(module.named_parameters())
        missing = {slot.name for slot in self.layout.slots} ^ params.keys()
        assert not missing, f"layout and module differ in {sorted(missing)}"
        self._bound = []
        rounded = {group.name: group.rounded for group in self.layout.groups}
        for slot in self.layout.slots:
            param = params[slot.name]
            assert param.dtype == self.dtype, f"{slot.name} is {param.dtype}, the state is {self.dtype}"
            assert tuple(param.shape) == slot.shape, slot.name
            part = slice(slot.offset, slot.offset + slot.numel)
            self.P[part].view(slot.shape).copy_(param.detach())
            grad = self.G[part].view(slot.shape)
            param.grad = None
            if self.W is None or not rounded[slot.group]:
                weight = self.P[part].view(slot.shape)
                param.data, param.grad = weight, grad
                self._bound.append((param, weight, grad))
            else:
                weight = self.W[part].view(slot.shape)
                param.data = weight
                self._hooks.append(sum_gradients(param, grad))
                self._bound.append((param, weight, None))
        if hasattr(module, "dropout_counter"):
            module.dropout_counter = self.dropout_counter
        self._follow()
        if self.E is not None:
            self.E.copy_(self.P)

    def unbound(self) -> list[str]:
        """What is no longer in its place in the flat buffers, in words, by parameter."""
        found = []
        for (param, weight, grad), slot in zip(self._bound, self.layout.slots, strict=True):
            if not _same_place(param, weight):
                found.append(f"{slot.name} left the flat parameters")
            if not _same_place(param.grad, grad):
                found.append(f"the gradient of {slot.name} left the flat gradients")
        return found

    def assert_bound(self) -> None:
        """Every parameter is still its view, and its gradient is in G and nowhere else."""
        found = self.unbound()
        assert not found, found

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the bound module's parameters are E, in the dtype it computes in; no buffer changes."""
        assert self.E is not None
        narrow = self.E if self.W is None else self.E.to(self.W.dtype)
        try:
            for (param, weight, _), slot in zip(self._bound, self.layout.slots, strict=True):
                average = self.E if weight.dtype == self.dtype else narrow
                param.data = average[slot.offset : slot.offset + slot.numel].view(slot.shape)
            yield
        finally:
            for param, weight, _ in self._bound:
                param.data = weight

    def buffers(self) -> tuple[Tensor, ...]:
        """Every flat buffer."""
        held = (self.P, self.G, self.M, self.V, self.E, self.W)
        return tuple(buffer for buffer in held if buffer is not None)

    def state_tensors(self) -> dict[str, Tensor]:
        """The buffers of a checkpoint by the name of their file; loading copies into them in place."""
        average = {} if self.E is None else {"ema": self.E}
        return {"params": self.P, "exp_avg": self.M, "exp_avg_sq": self.V} | average

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
        """Takes back what `scalars` gave, after the buffers were loaded; other keys are ignored."""
        products = [float.fromhex(str(scalars[key])) for key in ("beta1_product", "beta2_product")]
        counts = [int(scalars[key]) for key in ("applied_updates", "skipped_total", "skipped_run")]
        self.beta_products.copy_(torch.tensor(products, dtype=torch.float64))
        self.counters.copy_(torch.tensor(counts, dtype=torch.int64))
        self.G.zero_()
        self._follow()

    def _flat(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.layout.total, device=self.device, dtype=dtype)

    def _follow(self) -> None:
        """W is what P says."""
        if self.W is not None:
            self.W.copy_(self.P)


def flat_state(
    model: Trainable,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    ema: bool = False,
    shadow: torch.dtype | None = None,
) -> FlatState:
    """Lays out, allocates and binds a model."""
    assert isinstance(model, nn.Module)
    layout = Layout.build(model.param_groups(), model.layer_label)
    state = FlatState(layout, device, dtype, ema=ema, shadow=shadow)
    state.bind(model)
    return state


def _same_place(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors begin at one element of one storage; on the meta device pointers would not tell."""
    if a is None or b is None:
        return a is b
    same_storage = a.untyped_storage()._cdata == b.untyped_storage()._cdata
    return same_storage and a.storage_offset() == b.storage_offset()
