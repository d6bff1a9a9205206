"""Norm and update together, as a step launches them: several groups, one bad element, the update after it."""

import pytest
import torch

from tests.kernels.shapes import PLANTED, buffers, clone, close, norm_state, part, state, whole
from trainer_core.kernels.adamw import Buffers, Coefficients, update_reference
from trainer_core.kernels.adamw.triton import update_triton
from trainer_core.kernels.grad_norm import BLOCK, NormState, ReferenceGradNorm, Segments
from trainer_core.kernels.grad_norm.triton import TritonGradNorm

SEGMENTS = Segments(bounds=((0, 5), (5, 6), (6, 10), (10, 11), (11, 12)), labels=(0, 1, 2, 0, 2))
GROUPS = ((0, 10 * BLOCK), (10 * BLOCK, 12 * BLOCK))
TOTAL = 16 * BLOCK
RATES = torch.tensor([[3e-3, 0.1], [1e-2, 0.0]], dtype=torch.float64)
SHARED = torch.tensor([1e-8, 0.05], dtype=torch.float64)


def _step(b: Buffers, s: NormState, norm, update) -> None:
    whole(norm, b.G, s)
    for (first, end), rates in zip(GROUPS, RATES, strict=True):
        c = Coefficients(
            lr=rates[0],
            weight_decay=rates[1],
            beta1=s.betas[0],
            beta2=s.betas[1],
            eps=SHARED[0],
            clip=s.clip[0],
            products=s.products,
            applied=s.counters[0],
            ok=s.ok[0],
            ema_weight=SHARED[1],
        )
        update(part(b, first, end), c)


def _kernels(b: Buffers, s: NormState) -> None:
    _step(b, s, TritonGradNorm(SEGMENTS, torch.device("cpu")), lambda *a: update_triton(*a, block=4096))


def _twins(b: Buffers, s: NormState) -> None:
    _step(b, s, ReferenceGradNorm(SEGMENTS), update_reference)


def _fill(b: Buffers, seed: int) -> None:
    b.G.copy_(torch.randn(TOTAL, generator=torch.Generator().manual_seed(seed)))
    b.G[GROUPS[-1][1] :] = 0


def test_five_updates_equal_the_twins() -> None:
    ours, s, t = buffers(TOTAL), norm_state(SEGMENTS), norm_state(SEGMENTS)
    twin = clone(ours)
    for seed in range(5):
        _fill(ours, seed)
        _fill(twin, seed)
        _kernels(ours, s)
        _twins(twin, t)
    for name in "PMVE":
        assert close(state(ours)[name], state(twin)[name]), name
    assert s.counters.tolist() == t.counters.tolist() == [7, 1, 0]
    assert torch.equal(s.products, t.products)


@pytest.mark.parametrize("at", [0, 10 * BLOCK - 1, 12 * BLOCK - 1])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_bad_element_stops_every_group_and_leaves_no_trace(planted: str, at: int) -> None:
    plain, s_plain = buffers(TOTAL), norm_state(SEGMENTS)
    broken, s = clone(plain), norm_state(SEGMENTS)
    _fill(broken, 1)
    broken.G[at] = PLANTED[planted]
    _kernels(broken, s)
    assert s.counters.tolist() == [2, 2, 2]
    assert not broken.G[: GROUPS[-1][1]].any()
    for name, before in state(plain).items():
        assert torch.equal(state(broken)[name], before), name
    for b, counts in ((plain, s_plain), (broken, s)):
        _fill(b, 2)
        _kernels(b, counts)
    assert s.counters.tolist() == [3, 2, 0]
    for name, wanted in state(plain).items():
        assert torch.equal(state(broken)[name], wanted), name
