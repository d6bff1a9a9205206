"""Sums by index equal their twins in values and gradients, whatever the segments, and never change a bit."""

import pytest
import torch
from torch import Tensor, nn

from trainer_core.kernels.embedding import embedding
from trainer_core.kernels.segment_sum import segment_sum, weighted_rows
from trainer_core.kernels.segment_sum.op import add_segments, add_weighted_segments
from trainer_core.kernels.segment_sum.reference import segment_sum_reference, weighted_rows_reference
from trainer_core.kernels.wide_gradient import sum_gradients

SIZE = 13


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


INDICES = {
    "one row": torch.tensor([4]),
    "one segment": torch.full((70,), 7),
    "one takes most": torch.where(
        torch.rand(200, generator=_generator()) < 0.9, 2, torch.randint(SIZE, (200,), generator=_generator(1))
    ),
    "every other is empty": 2 * torch.randint(SIZE // 2, (50,), generator=_generator(2)),
    "each once": torch.randperm(SIZE, generator=_generator(3)),
    "no rows": torch.zeros(0, dtype=torch.int64),
}


@pytest.mark.parametrize("name", INDICES)
def test_sums_and_gradients_equal_the_twin(name: str) -> None:
    index = INDICES[name]
    rows = torch.randn(len(index), 5, dtype=torch.float64, generator=_generator(4)).requires_grad_()
    grad = torch.randn(SIZE, 5, dtype=torch.float64, generator=_generator(5))
    got, wanted = segment_sum(rows, index, SIZE), segment_sum_reference(rows, index, SIZE)
    torch.testing.assert_close(got, wanted, atol=1e-12, rtol=1e-12)
    assert not got[~torch.isin(torch.arange(SIZE), index)].any()
    (ours,), (theirs,) = (torch.autograd.grad(out, rows, grad) for out in (got, wanted))
    assert torch.equal(ours, theirs)


def test_bfloat16_sums_round_once() -> None:
    rows = torch.full((300, 2), 1.0, dtype=torch.bfloat16)
    assert segment_sum(rows, torch.zeros(300, dtype=torch.int64), 1).tolist() == [[300.0, 300.0]]


def _lookup(n: int, k: int, dtype: torch.dtype, slots: str = "random") -> tuple[Tensor, ...]:
    table = torch.randn(SIZE, 6, generator=_generator(6)).to(dtype)
    index = torch.randint(SIZE, (n, k), generator=_generator(7))
    if slots == "one":
        index.fill_(3)
    weights = torch.rand(n, k, generator=_generator(8)).to(dtype)
    return table, index, weights, torch.randn(n, 6, generator=_generator(9)).to(dtype)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 3), (40, 8)])
@pytest.mark.parametrize("slots", ["random", "one"])
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_weighted_rows_equal_the_twin(n: int, k: int, slots: str, dtype: torch.dtype, bar: float) -> None:
    table, index, weights, grad = _lookup(n, k, dtype, slots)
    inputs = (table.requires_grad_(), weights.requires_grad_())
    got = weighted_rows(table, index, weights)
    wanted = weighted_rows_reference(table, index, weights)
    torch.testing.assert_close(got, wanted, atol=bar, rtol=bar)
    ours = torch.autograd.grad(got, inputs, grad)
    for one, other in zip(ours, torch.autograd.grad(wanted, inputs, grad), strict=True):
        torch.testing.assert_close(one, other, atol=bar * n, rtol=bar)


def test_bfloat16_tables_round_once_and_sum_into_their_wide_buffer() -> None:
    table, index, weights, grad = _lookup(400, 8, torch.bfloat16)
    param, wide = nn.Parameter(table), torch.ones(SIZE, 6)
    sum_gradients(param, wide)
    weights = weights.float().requires_grad_()
    exact, exact_weights = (t.detach().double().requires_grad_() for t in (table, weights))
    out = weighted_rows(param, index, weights)
    wanted = weighted_rows_reference(exact, index, exact_weights)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), wanted, atol=1e-2, rtol=2.0**-8)
    out.backward(grad)
    wanted.backward(grad.double())
    assert param.grad is None and weights.grad is not None and weights.grad.dtype == torch.float32
    torch.testing.assert_close(wide.double() - 1, exact.grad, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(weights.grad.double(), exact_weights.grad, atol=1e-4, rtol=1e-5)


def test_two_backward_passes_are_bit_identical() -> None:
    table, index, weights, grad = _lookup(300, 8, torch.float32)
    inputs = (table.requires_grad_(), weights.requires_grad_())
    first, second = (torch.autograd.grad(weighted_rows(table, index, weights), inputs, grad) for _ in "ab")
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_only_the_gradients_that_are_asked_for() -> None:
    table, index, weights, grad = _lookup(5, 3, torch.float32)
    weighted_rows(table, index, weights.requires_grad_()).backward(grad)
    assert weights.grad is not None and table.grad is None
    assert not weighted_rows(table, index, weights.detach()).requires_grad


def test_what_is_there_is_added_to() -> None:
    out = torch.ones(SIZE, 6)
    _, index, weights, grad = _lookup(5, 3, torch.float32)
    add_weighted_segments(out, grad, index, weights)
    add_segments(out, grad, index[:, 0].contiguous())
    wanted = 1 + segment_sum_reference(
        (weights[..., None] * grad[:, None]).flatten(0, 1), index.flatten(), SIZE
    )
    wanted += segment_sum_reference(grad, index[:, 0], SIZE)
    torch.testing.assert_close(out, wanted)


def test_they_trace_on_meta_tensors() -> None:
    table = torch.empty(64, 8, device="meta", requires_grad=True)
    slots = torch.empty(5, 3, dtype=torch.int64, device="meta")
    weights = torch.empty(5, 3, device="meta", requires_grad=True)
    (weighted_rows(table, slots, weights).sum() + embedding(slots, table).sum()).backward()
    assert table.grad is not None and table.grad.shape == (64, 8)
    assert weights.grad is not None and weights.grad.shape == (5, 3)
    assert segment_sum(weights, slots[:, 0], 7).shape == (7, 3)


@pytest.mark.parametrize("narrow", [False, True])
def test_an_embedding_of_a_rare_and_a_frequent_id(narrow: bool) -> None:
    table = nn.Parameter(
        torch.randn(9, 4, generator=_generator()).to(torch.bfloat16 if narrow else torch.float64)
    )
    wide = torch.zeros(9, 4)
    if narrow:
        sum_gradients(table, wide)
    ids = torch.full((3, 600), 5)
    ids[1, 1] = 2
    out = embedding(ids, table)
    assert torch.equal(out, table[ids])
    out.backward(torch.ones_like(out))
    sums = wide if narrow else table.grad
    assert sums is not None and sums[:, 0].tolist() == [0, 0, 1, 0, 0, 1799, 0, 0, 0]
