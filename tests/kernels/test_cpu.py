"""The update of the CPU against its specification: average, copy, clips, skips, both precisions."""

import math
from dataclasses import fields, replace

import pytest
import torch

from tests.kernels.shapes import SIZES, buffers, clone, close, coefficients, doubles, state
from trainer_core.kernels.adamw import Buffers, update_cpu, update_reference
from trainer_core.kernels.adamw.cpu import has_fused_cpu


def _wide(b: Buffers) -> Buffers:
    held = {f.name: getattr(b, f.name) for f in fields(b)}
    return replace(b, **{name: t.double() for name, t in held.items() if t is not None and name != "W"})


@pytest.mark.parametrize("clip", [1.0, 0.37, 1e-9, 0.0])
@pytest.mark.parametrize("size", SIZES)
def test_equals_the_specification(size: str, clip: float) -> None:
    ours = buffers(SIZES[size])
    twin, c = clone(ours), replace(coefficients(ema_weight=0.05), clip=doubles(clip)[0])
    update_cpu(ours, c)
    update_reference(twin, c)
    assert not ours.G.any()
    for name in "PMVE":  # two roundings of the gradient more, and the second moment has its square
        assert close(state(ours)[name], state(twin)[name], 3e-7), name
    assert torch.equal(ours.W, ours.P.to(torch.bfloat16))
    assert clip == 0 or not torch.equal(ours.E, buffers(SIZES[size]).E)


@pytest.mark.parametrize("clip", [1.0, 0.37])
def test_double_precision_is_kept(clip: float) -> None:
    """The fused loop's own scaling of gradients is float32 arithmetic."""
    ours = _wide(buffers(2000))
    twin, c = clone(ours), replace(coefficients(), clip=doubles(clip)[0])
    update_cpu(ours, c)
    update_reference(twin, c)
    for name in "PMVE":
        assert close(state(ours)[name], state(twin)[name], 1e-14), name


@pytest.mark.parametrize("update", [update_cpu, update_reference])
def test_a_skip_moves_no_bit_of_the_average_and_the_copy(update) -> None:
    b = buffers(3000)
    b.G[7] = math.nan
    before = clone(b)
    update(b, coefficients(ok=False))
    assert not b.G.any()
    for name, wanted in state(before).items():
        assert torch.equal(state(b)[name], wanted), name


@pytest.mark.parametrize("update", [update_cpu, update_reference])
def test_an_average_needs_its_weight(update) -> None:
    with pytest.raises(AssertionError, match="without its weight"):
        update(buffers(10), replace(coefficients(), ema_weight=None))


def test_zeroing_stays_within_the_range() -> None:
    G = torch.ones(3000)
    b = buffers(1000)
    update_cpu(replace(b, G=G[1000:2000]), coefficients())
    assert G[:1000].all() and not G[1000:2000].any() and G[2000:].all()


def test_this_torch_has_the_loop() -> None:
    assert has_fused_cpu()
