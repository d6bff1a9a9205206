"""The norm's kernels against their twin: norms by label, the judgement, the clip, products and counters."""

import math

import pytest
import torch

from tests.kernels.shapes import PLANTED, norm_state, whole
from trainer_core.kernels.grad_norm import BLOCK, NormState, ReferenceGradNorm, Segments
from trainer_core.kernels.grad_norm.triton import TritonGradNorm

CPU = torch.device("cpu")

LAYOUTS = {
    "one block": Segments(bounds=((0, 1),), labels=(0,)),
    "less than a program": Segments(bounds=((0, 7),), labels=(0,)),
    "one program": Segments(bounds=((0, 3), (3, 8)), labels=(0, 1)),
    "more than a program": Segments(bounds=((0, 9),), labels=(0,)),
    "two groups": Segments(bounds=((0, 17), (17, 18), (18, 40), (40, 41), (41, 43)), labels=(0, 1, 2, 0, 2)),
    "many labels": Segments(bounds=tuple((i, i + 1) for i in range(33)), labels=tuple(range(33))),
}


def _gradients(segments: Segments) -> torch.Tensor:
    """Gradients of a layout whose buffer is longer than what it uses."""
    num_blocks = segments.bounds[-1][1] + 3
    G = torch.randn(num_blocks * BLOCK, generator=torch.Generator().manual_seed(1))
    scales = torch.logspace(-6, 2, num_blocks)
    return (G.view(num_blocks, BLOCK) * scales[:, None]).reshape(-1)


def _both(segments: Segments, G: torch.Tensor, max_norm: float = 1.5) -> tuple[NormState, NormState]:
    ours, twin = norm_state(segments, max_norm), norm_state(segments, max_norm)
    whole(TritonGradNorm(segments, CPU, chunk=4), G, ours)
    whole(ReferenceGradNorm(segments), G, twin)
    return ours, twin


@pytest.mark.parametrize("max_norm", [1.5, math.inf, 1e9])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_clip_and_state_equal_the_twin(layout: str, max_norm: float) -> None:
    segments = LAYOUTS[layout]
    ours, twin = _both(segments, _gradients(segments), max_norm)
    torch.testing.assert_close(ours.norms, twin.norms, rtol=1e-7, atol=0)
    torch.testing.assert_close(ours.clip, twin.clip, rtol=1e-7, atol=0)
    assert bool(ours.ok) and bool(twin.ok)
    assert torch.equal(ours.products, twin.products)
    assert ours.counters.tolist() == twin.counters.tolist() == [3, 1, 0]


@pytest.mark.parametrize("layout", ["two groups", "many labels"])
def test_norms_are_exact_to_1e_7(layout: str) -> None:
    segments = LAYOUTS[layout]
    G = _gradients(segments)
    ours, _ = _both(segments, G)
    squares = G.double().square().view(-1, BLOCK).sum(1)
    by_label = torch.zeros(segments.num_labels, dtype=torch.float64)
    for (first, end), label in zip(segments.bounds, segments.labels, strict=True):
        by_label[label] += squares[first:end].sum()
    wanted = torch.cat([by_label.sum()[None], by_label]).sqrt()
    torch.testing.assert_close(ours.norms, wanted, rtol=1e-7, atol=0)


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("at", [0, 17 * BLOCK - 1, 17 * BLOCK, 43 * BLOCK - 1])
def test_one_bad_element_is_judged_located_and_counted(planted: str, at: int) -> None:
    segments = LAYOUTS["two groups"]
    G = _gradients(segments)
    G[at] = PLANTED[planted]
    ours, twin = _both(segments, G)
    assert not bool(ours.ok) and not math.isfinite(ours.norms[0])
    assert torch.isfinite(ours.norms).tolist() == torch.isfinite(twin.norms).tolist()
    assert torch.isfinite(ours.norms).sum() == 2
    assert torch.equal(ours.products, norm_state(segments).products)
    assert ours.counters.tolist() == [2, 2, 2]


def test_what_lies_beyond_the_segments_does_not_count() -> None:
    segments = LAYOUTS["two groups"]
    G = _gradients(segments)
    whole, _ = _both(segments, G)
    G[43 * BLOCK :] = math.nan
    again, _ = _both(segments, G)
    assert torch.equal(whole.norms, again.norms)


def test_gradients_of_zero_are_applied_without_a_clip() -> None:
    segments = LAYOUTS["two groups"]
    ours, _ = _both(segments, torch.zeros(46 * BLOCK))
    assert bool(ours.ok) and not ours.norms.any() and float(ours.clip) == 1.0


@pytest.mark.parametrize("world", [2, 4])
def test_shards_give_the_bits_of_the_whole(world: int) -> None:
    """Ranks sum the squares of their own blocks, as many each, and finish from those of all."""
    segments = LAYOUTS["two groups"]
    G = torch.cat([_gradients(segments), torch.zeros(2 * BLOCK)])
    together, norm = norm_state(segments), TritonGradNorm(segments, CPU, chunk=4)
    whole(norm, G, together)
    blocks = torch.full((48,), math.nan, dtype=torch.float64)
    for own, part in zip(blocks.chunk(world), G.chunk(world), strict=True):
        norm.squares(part, own)
    shared = norm_state(segments)
    norm.finish(blocks, shared)
    assert torch.equal(shared.norms, together.norms) and torch.equal(shared.clip, together.clip)
    with pytest.raises(AssertionError, match="another layout"):
        norm.finish(blocks[:42], shared)
