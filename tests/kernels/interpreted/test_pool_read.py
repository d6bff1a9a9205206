"""The kernels of the pool read equal its twin in values and all gradients, on every shape of work."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.kernels.pools import GRADIENTS, Pool, pool
from tests.kernels.sizes import assert_alike
from trainer_core.kernels.pool_read import op, pool_read
from trainer_core.kernels.pool_read import triton as launches
from trainer_core.kernels.pool_read.reference import pool_read_reference

SMALL = launches.Plan(
    forward=launches.Tiles(M=16, N=32, num_warps=4, num_stages=2),
    queries=launches.Tiles(M=16, N=32, num_warps=4, num_stages=2),
    events=launches.Tiles(M=32, N=16, num_warps=4, num_stages=2),
)
"""Blocks that are small enough for several in a short row, and differ in shape as those of a GPU do."""

SHAPES = {
    "one": (1, 1),
    "one query": (1, 40),
    "block-1": (15, 15),
    "block": (32, 32),
    "block+1": (33, 33),
    "several blocks": (70, 70),
    "later segment": (37, 75),
}
"""Queries T and events S by name."""


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator takes the kernels here too, with small blocks; products are of float32."""
    monkeypatch.setattr(op, "has_kernel", lambda q: True)
    monkeypatch.setattr(launches, "plan", lambda dtype, head_dim: SMALL)
    monkeypatch.setattr(launches, "DTYPES", dict.fromkeys(launches.DTYPES, launches.DTYPES[torch.float32]))


def _both(fn, p: Pool, grad: Tensor) -> tuple[Tensor, ...]:
    out = fn(*p.arguments())
    return out.detach(), *torch.autograd.grad(out, [p.tensors[name] for name in GRADIENTS], grad)


def _equal(p: Pool, *, atol: float = 5e-6, rtol: float = 1e-5) -> None:
    exact = p.to(torch.float64)
    got, wanted = _both(pool_read, p, p.grad), _both(pool_read_reference, exact, exact.grad)
    for name, a, b in zip(("out", *GRADIENTS), got, wanted, strict=True):
        assert a.shape == b.shape and a.isfinite().all(), name
        torch.testing.assert_close(
            a.double(), b, atol=atol, rtol=rtol, msg=lambda m, name=name: f"{name}: {m}"
        )


HEADS = {"shared keys": (4, 2), "own keys": (2, 2), "one key head": (3, 1)}
"""Query heads H and key heads K by name."""


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_twin(shape: str) -> None:
    _equal(pool(*SHAPES[shape], 2, 1, d=16, rows=1, dtype=torch.float32))


@pytest.mark.parametrize("heads", HEADS)
def test_equals_the_twin_however_heads_share_keys(heads: str) -> None:
    _equal(pool(17, 35, *HEADS[heads], d=16, rows=2, dtype=torch.float32))


EXTREMES = {
    "never written": {"log_write": math.log(1e-6)},
    "fast clocks": {"clock_step": 20.0},
    "tiny values": {"scale": 1e-30},
    "denormal values": {"scale": 1e-42},
    "strong match": {"match": 1e3},
}

ROUNDING = {"fast clocks": 2e-4, "strong match": 4e-4}
"""About the distance of float32 values at the largest logits, here 200 and 1,000, times LOG2E."""


@pytest.mark.parametrize("extreme", EXTREMES)
def test_equals_the_twin_at_extreme_values(extreme: str) -> None:
    p = pool(20, 20, 1, 1, d=16, rows=1, dtype=torch.float32, **EXTREMES[extreme])
    scale = EXTREMES[extreme].get("scale", 1.0)
    exact = p.to(torch.float64)
    got, wanted = _both(pool_read, p, p.grad), _both(pool_read_reference, exact, exact.grad)
    sizes = {"out": scale, "q": scale, "k": scale, "v": 1 / scale}
    for name, a, b in zip(("out", *GRADIENTS), got, wanted, strict=True):
        bar = ROUNDING.get(extreme, 1e-5) * sizes.get(name, 1.0)
        assert (a.double() - b).abs().max().item() <= max(bar, 1e-43), name


def test_large_values_are_read_as_they_are() -> None:
    p = pool(20, 20, 1, 1, d=16, rows=1, dtype=torch.float32)
    p = p.with_tensors({"v": (p.tensors["v"].detach() * 1e30).requires_grad_()})
    exact = p.to(torch.float64)
    got, wanted = _both(pool_read, p, p.grad), _both(pool_read_reference, exact, exact.grad)
    for name, a, b in zip(("out", *GRADIENTS), got, wanted, strict=True):
        assert_alike(a, b, 1e-5, name)


def test_a_large_clock_keeps_small_differences() -> None:
    p = pool(20, 40, 2, 1, d=16, rows=1, dtype=torch.float32, clock_step=0.25)
    start = torch.tensor([0.0, 32_768.0])[None, :, None]
    _equal(p.with_tensors({"clock": (p.tensors["clock"].detach() + start).requires_grad_()}))


def test_large_logits_stay_finite() -> None:
    p = pool(20, 20, 1, 1, d=16, rows=1, dtype=torch.float32, scale=1e3)
    assert all(x.isfinite().all() for x in _both(pool_read, p, p.grad))


@pytest.mark.parametrize("cut", [16, 31])
def test_later_events_change_no_bit_of_earlier_outputs(cut: int) -> None:
    p, other = (pool(40, 40, 1, 1, d=16, rows=1, dtype=torch.float32, seed=seed) for seed in (0, 1))
    changed = {}
    for name, x in p.tensors.items():
        axis = 1 if x.dim() == 2 else 2
        later = other.tensors[name].narrow(axis, cut, x.shape[axis] - cut)
        changed[name] = torch.cat([x.narrow(axis, 0, cut), later], axis)
    before, after = pool_read(*p.arguments()), pool_read(*p.with_tensors(changed).arguments())
    assert torch.equal(before[:, :, :cut], after[:, :, :cut])
    assert not torch.equal(before[:, :, cut:], after[:, :, cut:])


def test_bfloat16_rounds_once() -> None:
    """Products are of float32 here, so the outputs are those of float32, rounded."""
    p = pool(20, 20, 2, 1, d=16, rows=1, dtype=torch.float32).to(torch.bfloat16, ("q", "k", "v"))
    wide = p.to(torch.float32)
    got = _both(pool_read, p, p.grad.bfloat16())
    wanted = _both(pool_read, wide, p.grad.bfloat16().float())
    assert torch.equal(got[0], wanted[0].bfloat16())
    assert torch.equal(got[3], wanted[3].bfloat16()), "the gradient of v needs no output"
    for name, a, b in zip(GRADIENTS, got[1:], wanted[1:], strict=True):
        assert a.dtype == p.tensors[name].dtype, name
        torch.testing.assert_close(a.float(), b, atol=2e-2, rtol=2e-2, msg=name)


def test_the_log_sum_exp_is_that_of_the_other_path() -> None:
    p = pool(20, 40, 2, 1, d=16, rows=1, dtype=torch.float32)
    arguments = [x.detach() for x in p.arguments()]
    ours = op._pool_read(*arguments, False)[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op, "has_kernel", lambda q: False)
        torch.testing.assert_close(ours, op._pool_read(*arguments, False)[1], atol=2e-6, rtol=2e-6)
