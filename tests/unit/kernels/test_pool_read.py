"""The pool read equals its twin in values and all gradients, is exactly causal, and is a sound custom op."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.pools import GRADIENTS, Pool, pool
from trainer_core.engine.backends.guard import CaptureGuard
from trainer_core.kernels.cost import Cost
from trainer_core.kernels.pool_read import blocks, op, pool_read, pool_weights, seen_before
from trainer_core.kernels.pool_read.cost import pool_read_cost
from trainer_core.kernels.pool_read.reference import pool_read_reference, pool_weights_reference

Q = blocks.BLOCK
SHAPES = {
    "one": (1, 1),
    "one query": (1, 7),
    "two": (2, 2),
    "block-1": (Q - 1, Q - 1),
    "block": (Q, Q),
    "block+1": (Q + 1, Q + 1),
    "three blocks and a part": (3 * Q + 17, 3 * Q + 17),
    "later segment": (Q + 9, 2 * Q + 30),
    "one query of many events": (1, 2 * Q + 3),
}
"""Queries T and events S by name."""

HEADS = {"shared keys": (4, 2), "own keys": (2, 2), "one key head": (3, 1)}
"""Query heads H and key heads K by name."""


def _gradients(fn: Callable[..., Tensor], p: Pool, grad: Tensor) -> tuple[Tensor, ...]:
    out = fn(*p.arguments())
    return out, *torch.autograd.grad(out, [p.tensors[name] for name in GRADIENTS], grad)


def _equal(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], bar: float) -> None:
    for name, a, b in zip(("out", *GRADIENTS), got, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, name
        torch.testing.assert_close(a, b, atol=bar, rtol=bar, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("save_up_to", [0, 10_000], ids=["recompute", "saved"])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_twin(shape: str, heads: str, save_up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "SAVE_UP_TO", save_up_to)
    for dtype, bar in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        p = pool(*SHAPES[shape], *HEADS[heads], dtype=dtype)
        wanted = _gradients(pool_read_reference, p, p.grad)
        _equal(_gradients(pool_read, p, p.grad), wanted, bar)


def test_gradcheck_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 2)
    p = pool(3, 5, 2, 1, d=2, rows=1, dtype=torch.float64, clock_step=0.3)
    flat = [p.tensors[name] for name in GRADIENTS]

    def read(*tensors: Tensor) -> Tensor:
        return pool_read(*p.with_tensors(dict(zip(GRADIENTS, tensors, strict=True))).arguments())

    for save_up_to in (0, 1024):
        monkeypatch.setattr(op, "SAVE_UP_TO", save_up_to)
        assert torch.autograd.gradcheck(read, flat)


@pytest.mark.parametrize("cut", [1, Q - 1, Q, Q + 1, 2 * Q + 40])
def test_later_events_change_no_bit_of_earlier_outputs(cut: int) -> None:
    p, other = (pool(3 * Q + 9, 3 * Q + 9, 4, 2, dtype=torch.float32, seed=seed) for seed in (0, 1))
    changed = {
        name: torch.cat(
            [x.narrow(axis, 0, cut), other.tensors[name].narrow(axis, cut, x.shape[axis] - cut)], axis
        )
        for name, x in p.tensors.items()
        for axis in [1 if x.dim() == 2 else 2]
    }
    before, after = pool_read(*p.arguments()), pool_read(*p.with_tensors(changed).arguments())
    assert torch.equal(before[:, :, :cut], after[:, :, :cut])
    assert not torch.equal(before[:, :, cut:], after[:, :, cut:])


@pytest.mark.parametrize("cuts", [(Q, 2 * Q), (1, 2, 3), (Q - 5, 2 * Q + 7)], ids=str)
def test_segments_read_what_the_whole_row_reads(cuts: tuple[int, ...]) -> None:
    S = 2 * Q + 20
    p = pool(S, S, 4, 2, dtype=torch.float64)
    whole = pool_read(*p.arguments())
    parts = [
        pool_read(*p.cut(first, end).arguments()) for first, end in zip((0, *cuts), (*cuts, S), strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts, 2), whole, atol=1e-13, rtol=1e-13)


def test_a_large_clock_keeps_small_differences() -> None:
    """Clocks of 32,768 differ by less than float32 can add to anything: the difference is taken first."""
    p = pool(Q + 40, Q + 40, 2, 1, dtype=torch.float32, clock_step=0.25)
    start = torch.tensor([0.0, 32_768.0])[None, :, None]
    late = p.with_tensors({"clock": (p.tensors["clock"].detach() + start).requires_grad_()})
    exact = late.to(torch.float64)
    for save_up_to in (0, 1024):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(op, "SAVE_UP_TO", save_up_to)
            got = _gradients(pool_read, late, late.grad)
        wanted = _gradients(pool_read_reference, exact, exact.grad)
        _equal(got, tuple(x.float() for x in wanted), 2e-5)


EXTREMES = {
    "never written": {"log_write": math.log(1e-6)},
    "fast clocks": {"clock_step": 40.0},
    "tiny values": {"scale": 1e-30},
    "denormal values": {"scale": 1e-42},
    "strong match": {"match": 1e4},
}

ROUNDING = {"fast clocks": 2e-3, "strong match": 2e-3}
"""Half the distance of float32 values about the largest logits, here 1,300 and 10,000, and a little more."""


@pytest.mark.parametrize("extreme", EXTREMES)
def test_equals_the_twin_at_extreme_values(extreme: str) -> None:
    p = pool(Q + 3, Q + 3, 2, 1, dtype=torch.float32, **EXTREMES[extreme])
    exact = p.to(torch.float64)
    got, wanted = _gradients(pool_read, p, p.grad), _gradients(pool_read_reference, exact, exact.grad)
    scale = EXTREMES[extreme].get("scale", 1.0)
    sizes = {"out": scale, "q": scale, "k": scale, "v": 1 / scale}
    for name, a, b in zip(("out", *GRADIENTS), got, wanted, strict=True):
        bar = ROUNDING.get(extreme, 1e-5) * sizes.get(name, 1.0)
        assert (a.double() - b.detach()).abs().max().item() <= max(bar, 1e-43), name


def test_large_logits_stay_finite() -> None:
    p = pool(Q + 3, Q + 3, 2, 1, dtype=torch.float32, scale=1e3)
    assert all(x.isfinite().all() for x in _gradients(pool_read, p, p.grad))


def test_repeats_bit_for_bit() -> None:
    p = pool(Q + 5, Q + 5, 4, 2, dtype=torch.float32)
    first, second = (_gradients(pool_read, p, p.grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_bfloat16_computes_in_float32_and_rounds_once() -> None:
    p = pool(Q + 5, Q + 5, 4, 2, dtype=torch.float32).to(torch.bfloat16, ("q", "k", "v"))
    got = _gradients(pool_read, p, p.grad.bfloat16())
    wide = p.to(torch.float32)
    wanted = _gradients(pool_read_reference, wide, p.grad.bfloat16().float())
    assert [x.dtype for x in got] == [torch.bfloat16] * 4 + [torch.float32] * 3
    for name, a, b in zip(("out", *GRADIENTS), got, wanted, strict=True):
        torch.testing.assert_close(a.float(), b, atol=2e-2, rtol=2e-2, msg=name)
    assert torch.equal(got[0], pool_read(*wide.arguments()).bfloat16())


def test_strided_inputs_equal_contiguous_ones() -> None:
    p = pool(Q + 2, Q + 2, 4, 2, dtype=torch.float32)
    strided = {
        name: x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x
        for name, x in p.tensors.items()
    }
    assert torch.equal(pool_read(*p.with_tensors(strided).arguments()), pool_read(*p.arguments()))


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_equal_the_twin(shape: str) -> None:
    p = pool(*SHAPES[shape], 4, 2, dtype=torch.float64)
    names = ("q", "k", "clock", "log_write", "ids", "before", "match")
    arguments = [p.tensors[name] for name in names]
    weights = pool_weights(*arguments)
    torch.testing.assert_close(weights, pool_weights_reference(*arguments).detach(), atol=1e-13, rtol=1e-13)
    assert not weights.requires_grad


@pytest.mark.parametrize("save", [True, False])
def test_opcheck(save: bool) -> None:
    p = pool(70, 90, 4, 2, dtype=torch.float32)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op._pool_read, (*p.arguments(), save), test_utils=checks)


def test_the_fakes_make_what_the_kernels_make() -> None:
    p = pool(70, 90, 4, 2, dtype=torch.float32).to(torch.bfloat16, ("q", "k", "v"))
    arguments = [x.detach() for x in p.arguments()]
    for save in (True, False):
        made = op._pool_read(*arguments, save)
        back = (p.grad.bfloat16(), *arguments, *made)
        for got, wanted in (
            (op._fake(*arguments, save), made),
            (op._fake_backward(*back), op._pool_read_backward(*back)),
        ):
            described = [[(x.shape, x.dtype, x.stride()) for x in some] for some in (got, wanted)]
            assert described[0] == described[1]


@pytest.mark.parametrize("S", [150, 1100], ids=["saved", "recompute"])
def test_a_graph_could_capture_both_passes(S: int) -> None:
    p = pool(S, S, 4, 2, dtype=torch.float32).to("meta")
    guard = CaptureGuard("micro", p.tensors.values())
    with guard:
        seen = seen_before(p.tensors["ids"])
        out = pool_read(*p.arguments())
        grads = torch.autograd.grad(out, [p.tensors[name] for name in GRADIENTS], torch.ones_like(out))
    assert not guard.problems and seen.shape == p.tensors["ids"].shape
    assert [g.shape for g in grads] == [p.tensors[name].shape for name in GRADIENTS]
    assert guard.storages.peak_bytes > 4 * 2 * 4 * S * S // 2 or S > op.SAVE_UP_TO


def test_seen_before_equals_a_loop() -> None:
    ids = torch.randint(0, 9, (3, 31), generator=torch.Generator().manual_seed(0))
    wanted = [[row[t] in row[:t] for t in range(31)] for row in ids.tolist()]
    assert seen_before(ids).tolist() == wanted
    assert seen_before(ids[:, :1]).tolist() == [[False]] * 3


def test_the_cost_is_that_of_the_tensors() -> None:
    T, S, H, K, d = 5, 9, 4, 2, 8
    p = pool(T, S, H, K, d=d, dtype=torch.float32).to(torch.bfloat16, ("q", "k", "v"))
    cost = pool_read_cost(rows=2, queries=T, events=S, heads=H, key_heads=K, head_dim=d, element_bytes=2)
    read = sum(x.numel() * (2 if x.dtype == torch.bfloat16 else 4) for x in p.tensors.values())
    of = {name: x.numel() * x.element_size() for name, x in p.tensors.items()}
    per_query = of["match"]
    assert cost["forward"].bytes == read + of["q"] + per_query
    assert cost["queries"].bytes == read + 3 * of["q"] + 3 * per_query
    made = of["k"] + of["v"] + of["clock"] + of["log_write"]
    assert cost["events"].bytes == read + of["q"] + 2 * per_query + made
    visible = 2 * H * sum(s <= S - T + t for t in range(T) for s in range(S))
    assert [cost[name].flops for name in ("forward", "queries", "events")] == [
        products * 2 * d * visible for products in (2, 3, 4)
    ]
    assert Cost(flops=6.0, bytes=8.0).seconds(flops_per_second=3, bytes_per_second=2) == 4.0
