"""Dropout by hash: known bits, the right share, independence of all its inputs, one mask for both passes."""

import math
from itertools import combinations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from trainer_core.kernels.dropout import dropout
from trainer_core.kernels.dropout.reference import CHUNK, hashes

N = 1 << 20
USUAL = (1234, 57_001, 7)


def _counter(*words: int) -> torch.Tensor:
    return torch.tensor(words or USUAL, dtype=torch.int64)


def _kept(counter=USUAL, site: int = 3, p: float = 0.5, n: int = N) -> torch.Tensor:
    return dropout(torch.ones(n), _counter(*counter), site, p) != 0


def _mix(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)


def _hash(counter: tuple[int, ...], site: int, element: int) -> int:
    """The definition once more, in whole numbers."""
    keys = []
    for key in (0x243F6A88, 0x85A308D3):
        for word in counter:
            for half in (word & 0xFFFFFFFF, word >> 32 & 0xFFFFFFFF):
                key = _mix(key ^ half)
        keys.append(_mix(key ^ site))
    return _mix(_mix(element ^ keys[0]) + keys[1] & 0xFFFFFFFF)


@pytest.mark.parametrize("counter", [(0, 0, 0), USUAL, ((1 << 53) + 1, (1 << 33) + 5, 3), (-5, 1, 2)])
def test_the_hash_is_its_definition(counter) -> None:
    n = CHUNK + 50
    found = hashes(_counter(*counter), 91, n)
    for element in (0, 1, 2, 1000, CHUNK - 1, CHUNK, n - 1):
        assert int(found[element]) & 0xFFFFFFFF == _hash(counter, 91, element)


KNOWN = [0x13A56CC2, 0xD47975F4, 0xCF8592FD, 0xFFEF8943]
KEPT = [0.0, 4.0, 6.0, 8.0, 0.0, 0.0, 0.0, 0.0]


def test_the_bits_of_a_version_are_those_of_the_next() -> None:
    assert [_hash(USUAL, 3, i) for i in range(4)] == KNOWN
    x = torch.arange(1, 9, dtype=torch.float32)
    assert dropout(x, _counter(), 3, 0.5).tolist() == KEPT


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_share_of_dropped_elements_and_the_mean(p: float) -> None:
    for update in range(4):
        kept = int(_kept((1, update, 0), p=p).sum())
        assert abs(kept - N * (1 - p)) < 5 * math.sqrt(N * p * (1 - p))
    x = torch.full((N,), 3.0)
    assert dropout(x, _counter(), 0, p).mean().item() == pytest.approx(
        3.0, rel=5 * math.sqrt(p / (1 - p) / N)
    )


NEIGHBOURS = {
    "usual": (USUAL, 3),
    "seed": ((1235, 57_001, 7), 3),
    "high seed": ((1234 + (1 << 32), 57_001, 7), 3),
    "update": ((1234, 57_002, 7), 3),
    "micro-batch": ((1234, 57_001, 8), 3),
    "site": (USUAL, 4),
    "swapped": ((1234, 7, 57_001), 3),
}


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_of_different_inputs_are_independent(p: float) -> None:
    masks = {name: _kept(counter, site, p) for name, (counter, site) in NEIGHBOURS.items()}
    share = (1 - p) ** 2
    for one, other in combinations(masks, 2):
        both = int((masks[one] & masks[other]).sum())
        assert abs(both - N * share) < 5 * math.sqrt(N * share * (1 - share)), (one, other)


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 16, 64, 256, 257, 1024, 4096])
def test_elements_at_a_distance_are_independent(distance: int) -> None:
    kept = _kept()
    pairs = kept[distance:] & kept[:-distance]
    assert abs(int(pairs.sum()) - pairs.numel() / 4) < 5 * math.sqrt(pairs.numel() * 3 / 16)


def test_bytes_of_the_hash_are_uniform() -> None:
    found = hashes(_counter(), 3, N)
    for shift in (0, 8, 16, 24):
        counts = torch.bincount((found >> shift) & 255, minlength=256).double()
        chi = float(((counts - N / 256) ** 2 / (N / 256)).sum())
        assert 255 - 6 * math.sqrt(2 * 255) < chi < 255 + 6 * math.sqrt(2 * 255), shift


def test_rows_have_no_pattern() -> None:
    """Kept elements per row and column of a plane of activations scatter as independent draws do."""
    plane = _kept().view(1024, 1024).double()
    for axis in (0, 1):
        sums = plane.sum(axis)
        assert abs(sums.var().item() / 256 - 1) < 6 * math.sqrt(2 / 1023)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_kept_elements_are_scaled_and_the_gradient_has_the_same_mask(dtype: torch.dtype) -> None:
    x = torch.randn(7, 33, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    out = dropout(x, _counter(), 3, 0.25)
    kept = _kept(p=0.25, n=x.numel()).view(x.shape)
    assert out.dtype == dtype
    assert torch.equal(out, torch.where(kept, x * (1 / 0.75), 0))
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert torch.equal(grad, torch.where(kept, torch.ones_like(x) * (1 / 0.75), 0))


def test_gradients_to_the_second_order() -> None:
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: dropout(t, _counter(), 0, 0.3), (x,))
    assert torch.autograd.gradgradcheck(lambda t: dropout(t, _counter(), 0, 0.3), (x,))


def test_the_order_of_elements_is_that_of_the_tensor_not_of_its_memory() -> None:
    x = torch.randn(6, 10)
    plain = dropout(x, _counter(), 0, 0.5)
    assert torch.equal(dropout(x.t().contiguous().t(), _counter(), 0, 0.5), plain)


def test_recomputation_drops_the_same_and_no_generator_moves() -> None:
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(3))

    def block(t: torch.Tensor) -> torch.Tensor:
        return dropout(torch.tanh(t @ weight), _counter(), 1, 0.4).square()

    before = torch.get_rng_state()
    (plain,) = torch.autograd.grad(block(x).sum(), weight)
    again = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    (recomputed,) = torch.autograd.grad(again.sum(), weight)
    assert torch.equal(plain, recomputed)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_counter_must_not_move_between_the_passes() -> None:
    counter, x = _counter(), torch.ones(8, requires_grad=True)
    out = dropout(x, counter, 0, 0.5)
    counter[2] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_on_meta_tensors_it_is_one_operator_that_draws_nothing() -> None:
    x = torch.empty(4, 8, device="meta", requires_grad=True)
    out = dropout(x, torch.empty(3, dtype=torch.int64, device="meta"), 0, 0.5)
    assert out.shape == x.shape and out.device.type == "meta"
    assert torch.Tag.nondeterministic_seeded not in torch.ops.nstrain.dropout.default.tags
    out.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape


def test_nothing_is_dropped_at_zero() -> None:
    x = torch.randn(5)
    assert dropout(x, _counter(), 0, 0.0) is x
