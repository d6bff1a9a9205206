"""Kernels on bfloat16: computed in float32 inside and rounded once; wide gradients lose nothing in sums."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer_core.kernels.cross_entropy import linear_cross_entropy
from trainer_core.kernels.cross_entropy.op import NARROW_CHUNK
from trainer_core.kernels.cross_entropy.reference import linear_cross_entropy_reference
from trainer_core.kernels.embedding import embedding
from trainer_core.kernels.norm import rms_norm
from trainer_core.kernels.norm.reference import rms_norm_reference
from trainer_core.kernels.rope import rotate
from trainer_core.kernels.rope.reference import rotate_reference
from trainer_core.kernels.segment_sum import weighted_rows
from trainer_core.kernels.wide_gradient import sum_gradients, wide_gradient
from trainer_core.models.blocks import rope_tables

BF16 = torch.bfloat16
ULP = 2.0**-7


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def _off(got: Tensor, wanted: Tensor) -> float:
    """Largest error, relative to each element or to the mean size of all."""
    floor = wanted.abs().mean()
    return ((got.double() - wanted).abs() / wanted.abs().clamp(min=floor)).max().item()


def test_norm_rounds_once() -> None:
    x, weight, grad = _draw(6, 50, 96), _draw(96, seed=1), _draw(6, 50, 96, seed=2)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    wide_x, wide_weight = (t.detach().double().requires_grad_() for t in (x, weight))
    out, wanted = rms_norm(x, weight, 1e-5), rms_norm_reference(wide_x, wide_weight, 1e-5)
    assert out.dtype == BF16
    assert _off(out.detach(), wanted.detach()) <= ULP / 2 + 1e-6
    got = torch.autograd.grad(out, (x, weight), grad)
    exact = torch.autograd.grad(wanted, (wide_x, wide_weight), grad.double())
    for ours, theirs in zip(got, exact, strict=True):
        assert ours.dtype == BF16
        assert _off(ours, theirs) <= ULP / 2 + 1e-5


def test_rotation_rounds_once() -> None:
    cos, sin = rope_tables(40, 16, 10_000.0, torch.float32)
    x = _draw(2, 40, 3, 16).transpose(1, 2).requires_grad_()
    out = rotate(x, cos, sin)
    wanted = rotate_reference(x.detach().float(), cos, sin)
    assert torch.equal(out, wanted.to(BF16)) and out.is_contiguous()
    (grad,) = torch.autograd.grad(out, x, _draw(2, 3, 40, 16, seed=3))
    assert torch.equal(grad, rotate_reference(_draw(2, 3, 40, 16, seed=3).float(), cos, -sin).to(BF16))


@pytest.mark.parametrize("tokens", [1, 60, NARROW_CHUNK + 5])
def test_cross_entropy_is_that_of_the_rounded_logits(tokens: int) -> None:
    hidden, weight = _draw(tokens, 16).requires_grad_(), nn.Parameter(_draw(40, 16, seed=1))
    wide = torch.zeros(40, 16)
    handle = sum_gradients(weight, wide)
    targets = torch.randint(40, (tokens,), generator=torch.Generator().manual_seed(2))
    targets[3:9] = -100
    loss = linear_cross_entropy(hidden, weight, targets)
    exact_hidden, exact_weight = (t.detach().double().requires_grad_() for t in (hidden, weight))
    wanted = linear_cross_entropy_reference(exact_hidden, exact_weight, targets)
    assert loss.dtype == torch.float32
    logits = (hidden @ weight.t()).float()
    of_rounded = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    assert loss.item() == pytest.approx(of_rounded.item(), rel=1e-5)
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(hidden, weight, targets), loss)
    (loss * 0.5).backward()
    (wanted * 0.5).backward()
    assert weight.grad is None and hidden.grad is not None and hidden.grad.dtype == BF16
    for ours, theirs in ((hidden.grad, exact_hidden.grad), (wide, exact_weight.grad)):
        assert (ours.double() - theirs).norm() / theirs.norm() < ULP
    assert not hidden.grad[3:9].any()
    handle.remove()


def test_a_frequent_id_loses_nothing() -> None:
    """In bfloat16 a sum of ones stops at 256."""
    table = nn.Parameter(torch.zeros(8, 4, dtype=BF16))
    wide = torch.zeros(8, 4)
    sum_gradients(table, wide)
    ids = torch.full((3, 500), 5)
    ids[0, 0] = 2
    embedding(ids, table).sum().backward()
    assert wide[5].tolist() == [1499.0] * 4 and wide[2].tolist() == [1.0] * 4
    assert wide.sum() == 6000 and table.grad is None
    with torch.no_grad():
        assert torch.equal(embedding(ids, table), table[ids])


def test_what_autograd_makes_is_added_and_a_float32_parameter_has_no_buffer() -> None:
    weight = nn.Parameter(_draw(5, 3))
    assert wide_gradient(weight) is None
    wide = torch.ones(5, 3)
    sum_gradients(weight, wide)
    for _ in range(2):
        (weight * 3).sum().backward()
    assert torch.equal(wide, torch.full((5, 3), 7.0)) and weight.grad is None


def test_what_is_frozen_gets_no_gradient() -> None:
    """Tables and the head have theirs added by kernels, which autograd does not hold back."""
    ids, hidden = torch.tensor([[0, 1], [1, 1]]), _draw(4, 8, seed=1).requires_grad_()
    table, wide = nn.Parameter(_draw(5, 8)), torch.zeros(5, 8)
    sum_gradients(table, wide)
    table.requires_grad_(False)
    weights = torch.rand(2, 2, requires_grad=True)
    loss = linear_cross_entropy(hidden, table, ids.flatten())
    (loss + weighted_rows(table, ids, weights).sum() + embedding(ids, table).sum()).backward()
    assert not wide.any() and hidden.grad is not None and weights.grad is not None
    table.requires_grad_()
    embedding(ids, table).float().sum().backward()
    assert wide.any()


@pytest.mark.parametrize("end", ["copied", "stored", "removed"])
def test_kernels_add_to_the_buffer_only_as_long_as_autograd_does(end: str) -> None:
    """A stored table took its buffer along, without the hook: its gradient was nowhere to be seen."""
    table, wide = nn.Parameter(_draw(5, 8)), torch.zeros(5, 8)
    handle = sum_gradients(table, wide)
    if end == "removed":
        handle.remove()
    ends = {
        "copied": copy.deepcopy,
        "stored": lambda t: pickle.loads(pickle.dumps(t)),
        "removed": lambda t: t,
    }
    other = ends[end](table)
    assert wide_gradient(other) is None
    embedding(torch.tensor([0, 3, 3]), other).float().sum().backward()
    assert not wide.any() and other.grad[:, 0].tolist() == [1, 0, 0, 2, 0]
