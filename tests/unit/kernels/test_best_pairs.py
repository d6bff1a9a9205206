"""The search for the best pairs: both forms choose the same, and both have the right gradient."""

import pytest
import torch
from torch import Tensor

from trainer_core.kernels.best_pairs import best_pairs, best_pairs_by_topk

SIZES = [(1, 1, 1, 1), (2, 32, 37, 8), (1, 5, 9, 5), (3, 33, 4, 6), (1, 128, 50, 16), (2, 2, 3, 1)]
"""Heads, keys of a half, queries, pairs that are chosen."""


def inputs(heads: int, n: int, m: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    g = torch.Generator().manual_seed(heads * n * m)
    return [torch.randn(heads, 2, size, 6, generator=g).to(dtype).requires_grad_() for size in (m, n)]


def by_hand(queries: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """All pairs of all keys, sorted."""
    scores = torch.einsum("hpmd,hpnd->hpmn", queries, keys)
    pairs = (scores[:, 0, :, :, None] + scores[:, 1, :, None, :]).flatten(2)
    best, slots = pairs.sort(dim=-1, descending=True)
    return best[..., :k].transpose(1, 2), slots[..., :k].transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_best_of_all_pairs(size: tuple[int, ...], dtype: torch.dtype) -> None:
    """float32 takes the form of a CPU, float64 torch's own search."""
    *size, k = size
    held = inputs(*size, dtype=dtype)
    (chosen, slots), (wanted, wanted_slots) = best_pairs(*held, k), by_hand(*held, k)
    bar = 1e-5 if dtype == torch.float32 else 1e-12
    assert torch.equal(slots, wanted_slots)
    torch.testing.assert_close(chosen, wanted, atol=bar, rtol=bar)
    pull = torch.randn(chosen.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    got, right = (torch.autograd.grad(of, held, pull) for of in (chosen, wanted))
    torch.testing.assert_close(got, right, atol=bar, rtol=bar)


def test_scores_keep_every_bit() -> None:
    queries, keys = inputs(2, 32, 500)
    scores = torch.bmm(keys.flatten(0, 1), queries.flatten(0, 1).mT).view(2, 2, 32, 500).mT
    chosen, slots = best_pairs_by_topk(scores, 8)
    got, got_slots = best_pairs(queries, keys, 8)
    assert torch.equal(got, chosen) and torch.equal(got_slots, slots)


@pytest.mark.parametrize("scale", [1e-42, 1e-20, 1e15, -1.0], ids=["denormal", "tiny", "large", "negative"])
def test_scores_of_any_size(scale: float) -> None:
    queries, keys = inputs(1, 8, 20)
    queries = queries.abs() * scale
    (chosen, slots), (wanted, _) = best_pairs(queries, keys.abs(), 4), by_hand(queries, keys.abs(), 4)
    torch.testing.assert_close(chosen, wanted, rtol=1e-5, atol=1e-44)
    assert all(len(set(column.tolist())) == 4 for column in slots[0].T), "no pair twice"


def test_equal_scores_are_chosen_once_each() -> None:
    chosen, slots = best_pairs(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 6, 4), 5)
    assert torch.equal(chosen, torch.full((1, 5, 3), 8.0))
    assert all(len(set(column.tolist())) == 5 for column in slots[0].T)


def test_what_is_no_number_stays_a_slot() -> None:
    """A model that diverges says so by its loss, not by an index beyond the table."""
    queries, keys = inputs(1, 33, 7)
    with torch.no_grad():
        queries[0, 0, 2], queries[0, 1, 3], queries[0, 0, 4] = float("nan"), float("inf"), float("-inf")
    chosen, slots = best_pairs(queries, keys, 4)
    assert chosen[0, :, 2:5].isnan().all() and chosen[0, :, [0, 1, 5, 6]].isfinite().all()
    assert slots.min() >= 0 and slots.max() < 33 * 33


def test_both_forms_trace_on_meta() -> None:
    for dtype in (torch.float32, torch.float64):
        held = [x.to("meta").requires_grad_() for x in inputs(2, 32, 10, dtype)]
        chosen, slots = best_pairs(*held, 8)
        assert (chosen.shape, slots.shape, slots.dtype) == ((2, 8, 10), (2, 8, 10), torch.int64)
        assert torch.autograd.grad(chosen.sum(), held)[1].shape == (2, 2, 32, 6)
