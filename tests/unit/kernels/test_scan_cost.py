"""What a scan costs: operations and bytes by formula, as they are counted, and as kernels are launched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_core.kernels.scan import chunked, triton
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


class _Launches:
    """Takes the place of a kernel; keeps arguments of launches by name, and how many programs they have."""

    def __init__(self, kernel: Any, kept: list[dict[str, Any]]) -> None:
        self.names, self.kept = kernel.arg_names, kept

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            programs = torch.Size(grid).numel()
            self.kept.append({**dict(zip(self.names, args, strict=False)), **constants, "programs": programs})

        return launch


KERNELS = {
    "cumsum": "chunk_cumsum_kernel",
    "state": "chunk_state_kernel",
    "state_pass": "state_pass_kernel",
    "scan": "chunk_scan_kernel",
    "state_pass_backward": "state_pass_backward_kernel",
    "scan_backward": "chunk_scan_backward_kernel",
    "groups": "chunk_scan_groups_kernel",
}
"""Kernels that both passes launch; of the state and of the groups there are two launches each."""

TWICE = {"state_pass": "V", "state_pass_backward": "d_V"}
"""What is read and written."""

ENDS = ("state_pass", "state_pass_backward")
"""Kernels that read the exponent of a chunk's last token alone."""


def _products(name: str, launch: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Sizes of the products of a program."""
    Q, N, P, rows = (launch.get(key, 0) for key in ("Q", "N", "P", "ROWS"))
    return {
        "state": [(N, Q, P)],
        "state_backward": [(N, Q, P)],
        "scan": [(Q, N, Q), (Q, N, P), (Q, Q, P)],
        "scan_backward": [(Q, N, P), (Q, N, P), (Q, N, Q), (Q, Q, P), (Q, P, Q)],
        "reads_backward": [*[(rows, P, N), (rows, P, Q)] * launch.get("HEADS", 0), (rows, Q, N)],
        "writes_backward": [*[(rows, P, N), (rows, P, Q)] * launch.get("HEADS", 0), (rows, Q, N)],
    }.get(name, [])


def _bytes(name: str, launch: dict[str, Any], s: Shape) -> float:
    """Of the tensors of a launch, each of them once."""
    total = 0.0
    for argument, x in launch.items():
        if not isinstance(x, Tensor) or (name, argument) == ("state_backward", "steps"):
            continue
        size = x.numel() * x.element_size() * (2 if TWICE.get(name) == argument else 1)
        size /= s.Q if name in ENDS and argument == "cum" else 1
        total += size * s.chunks / x.shape[0] if x.shape[0] == s.chunks + 1 else size
    return total


@pytest.mark.parametrize(("H", "G"), [(64, 1), (16, 1), (48, 2)])
def test_bytes_and_operations_are_those_of_the_launches(
    H: int, G: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the few numbers of a chunk; four parts of a group of 64 heads write sums of their own."""
    kept: dict[str, list[dict[str, Any]]] = {name: [] for name in KERNELS}
    for name, kernel in KERNELS.items():
        monkeypatch.setattr(triton, kernel, _Launches(getattr(triton, kernel), kept[name]))
    B, T, P, N = 2, 384, 64, 128
    u, dt, A = torch.zeros(B, T, H, P).bfloat16(), torch.zeros(B, T, H), torch.zeros(H)
    b, r = torch.zeros(2, B, T, G, N).bfloat16()
    x = Inputs(u, dt, A, b, r, None)
    s = Shape.of(x, 128)
    V = triton.forward_triton(s, x, None)[2]
    triton.backward_triton(s, u, None, x, V)
    launches = {name: some[0] for name, some in kept.items() if name != "groups"}
    launches |= {"state_backward": kept["state"][1]}
    launches |= {"reads_backward" if each["READS"] else "writes_backward": each for each in kept["groups"]}
    costs = kernel_costs(s, 2)
    assert costs.keys() == launches.keys() and len(kept["cumsum"]) == 2
    for name, cost in costs.items():
        assert cost.bytes == pytest.approx(_bytes(name, launches[name], s), rel=2e-3), name
        each = sum(2 * m * k * n for m, k, n in _products(name, launches[name]))
        assert cost.flops == each * launches[name]["programs"], name
