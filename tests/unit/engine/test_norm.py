"""The two-level norm: right to 1e-6 on long buffers, by layer, and loud about non-finite elements."""

import math

import pytest
import torch
from torch import nn

from trainer_core.engine.layout import Layout, ParamGroup
from trainer_core.kernels.grad_norm import reference


def norms(G: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    total, *labels = reference.norms(reference.block_squares(G), layout.norm_segments)
    return total, torch.stack(labels)


def _layout(sizes: dict[str, int]) -> Layout:
    params = [(name, nn.Parameter(torch.empty(size, device="meta"))) for name, size in sizes.items()]
    group = ParamGroup(name="all", decay=True, lr_mult=1.0, params=params)
    return Layout.build([group], lambda name: name.split(".")[0])


def test_relative_error_on_millions_of_elements() -> None:
    layout = _layout({"a.w": 5_000_000, "b.w": 3_000_001})
    G = torch.zeros(layout.total)
    g = torch.Generator().manual_seed(0)
    for slot in layout.slots:
        G[slot.offset : slot.offset + slot.numel].normal_(0, 1e-3, generator=g)
    total, labels = norms(G, layout)
    exact = G.double().square().sum().sqrt()
    assert abs(total / exact - 1) < 1e-6
    b = layout.slots[1]
    exact_b = G[b.offset : b.offset + b.numel].double().square().sum().sqrt()
    assert abs(labels[1] / exact_b - 1) < 1e-6
    assert total.dtype == torch.float64


def test_layers_combine_to_the_total() -> None:
    layout = _layout({"a.w": 1500, "b.w": 10, "a.v": 7})
    G = torch.zeros(layout.total)
    for slot, value in zip(layout.slots, (1.0, 2.0, 3.0), strict=True):
        G[slot.offset : slot.offset + slot.numel] = value
    total, labels = norms(G, layout)
    by_name = dict(zip(layout.labels, labels.tolist(), strict=True))
    expected = {"a": 0.0, "b": 0.0}
    for slot in layout.slots:
        part = G[slot.offset : slot.offset + slot.numel]
        expected[slot.label] += float(part.double().square().sum())
    for name, square in expected.items():
        assert by_name[name] == pytest.approx(math.sqrt(square), rel=1e-6)
    assert float(total) == pytest.approx(math.sqrt(sum(expected.values())), rel=1e-6)


@pytest.mark.parametrize("planted", [math.inf, -math.inf, math.nan])
def test_one_bad_element_is_seen_and_located(planted: float) -> None:
    layout = _layout({"a.w": 3000, "b.w": 3000})
    G = torch.ones(layout.total)
    G[layout.slots[1].offset + 2999] = planted
    total, labels = norms(G, layout)
    assert not torch.isfinite(total)
    assert torch.isfinite(labels).tolist() == [True, False]
