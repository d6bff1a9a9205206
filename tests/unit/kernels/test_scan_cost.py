"""What a scan costs: operations and bytes by formula, operations as they are counted."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_core.kernels.scan import chunked
from trainer_core.kernels.scan.cost import BACKWARD, dense_flops, kernel_costs, shape, totals
from trainer_core.kernels.scan.layout import Inputs, Shape

PRODUCTS = {f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "baddbmm_")}
"""Operators whose last two tensors are multiplied."""


class _Products(TorchDispatchMode):
    """Counts the operations of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        assert name in PRODUCTS or "mm" not in name.split("::")[1], name
        if "mm" in name:
            left, right = [x for x in args if isinstance(x, Tensor)][-2:]
            self.flops += 2 * left.numel() * right.shape[-1]
        return func(*args, **kwargs or {})


def test_operations_are_those_of_the_formula() -> None:
    u, dt, A = torch.randn(2, 40, 4, 4), torch.rand(2, 40, 4), -torch.rand(4)
    b, r = torch.randn(2, 40, 2, 3), torch.randn(2, 40, 2, 3)
    x = Inputs(u, dt, A, b, r, None)
    s = Shape.of(x, 16)
    assert s == shape(2, 40, 4, 4, 2, 3, 16)
    with _Products() as counted:
        V = chunked.forward(s, x, None)[2]
        forward = counted.flops
        chunked.backward(s, u, None, x, V)
    assert (forward, counted.flops - forward) == dense_flops(s)


def test_the_cost_of_the_kernels() -> None:
    s = shape(8, 4096, 64, 64, 1, 128, 128)
    costs = kernel_costs(s, 2)
    u, shared, V = 8 * 4096 * 64 * 64 * 2, 8 * 4096 * 128 * 2, 32 * 8 * 64 * 64 * 128 * 4
    line = 8 * 4096 * 64 * 4
    assert costs["scan"].bytes == 2 * u + 2 * shared + 2 * line + V
    assert costs["scan"].flops == 2 * 8 * 4096 * 64 * (128 * 128 + 128 * 64 + 128 * 64)
    assert kernel_costs(s, 4)["scan"].bytes - costs["scan"].bytes == 2 * u + 2 * shared
    forward, backward = totals(s, 2)
    assert forward.bytes + backward.bytes == sum(c.bytes for c in costs.values()) + costs["cumsum"].bytes
    assert forward.flops + backward.flops == sum(c.flops for c in costs.values())
    assert backward.flops == sum(costs[name].flops for name in BACKWARD) > 2 * forward.flops
