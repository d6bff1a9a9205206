"""The update's kernel against its twin: values over sizes and optional buffers, skips, rounding, blocks."""

import math

import pytest
import torch

from tests.kernels.shapes import SIZES, buffers, clone, close, coefficients, state
from trainer_core.kernels.adamw import update_reference
from trainer_core.kernels.adamw.triton import update_triton

OPTIONS = {"plain": (False, False), "average": (True, False), "copy": (False, True), "both": (True, True)}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("size", SIZES)
def test_three_updates_equal_the_twin(size: str, options: str) -> None:
    average, copy = OPTIONS[options]
    ours = buffers(SIZES[size], average=average, copy=copy)
    twin = clone(ours)
    block = 1024 if SIZES[size] < 5000 else 16384
    for i in range(3):
        for b in (ours, twin):
            b.G.copy_(torch.randn(SIZES[size], generator=torch.Generator().manual_seed(i)))
        c = coefficients(lr=3e-3 * (i + 1))
        update_triton(ours, c, block=block)
        update_reference(twin, c)
    assert not ours.G.any()
    for name, wanted in state(twin).items():
        if name == "W":
            assert torch.equal(ours.W, ours.P.to(torch.bfloat16))
        else:
            assert close(state(ours)[name], wanted), name


@pytest.mark.parametrize("size", SIZES)
def test_a_skipped_update_moves_no_bit_and_zeroes_the_gradients(size: str) -> None:
    b = buffers(SIZES[size])
    b.G[0], b.M[-1] = math.nan, math.inf
    before = clone(b)
    update_triton(b, coefficients(ok=False), block=1024 if SIZES[size] < 5000 else 16384)
    assert not b.G.any()
    for name, wanted in state(before).items():
        assert torch.equal(state(b)[name].view(torch.uint8), wanted.view(torch.uint8)), name


@pytest.mark.parametrize("programs", [1, 2, 5])
@pytest.mark.parametrize("num_blocks", [1, 2, 7, 16, 21])
def test_every_block_belongs_to_one_program(num_blocks: int, programs: int) -> None:
    """However many blocks a program has: each element is updated once, and none twice."""
    ours = buffers(num_blocks * 64 - 5, copy=False)
    twin = clone(ours)
    update_triton(ours, coefficients(), block=64, programs=programs)
    update_reference(twin, coefficients())
    for name, wanted in state(twin).items():
        assert close(state(ours)[name], wanted), name


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_the_average_takes_any_weight(weight: float) -> None:
    ours = buffers(200, copy=False)
    twin = clone(ours)
    update_triton(ours, coefficients(ema_weight=weight))
    update_reference(twin, coefficients(ema_weight=weight))
    assert close(ours.E, twin.E)
    assert weight != 1.0 or torch.equal(ours.E, ours.P)


def test_the_copy_rounds_to_nearest_even_as_torch_does() -> None:
    words = torch.randint(-(1 << 31), 1 << 31, (8192,), generator=torch.Generator().manual_seed(3))
    ties = torch.tensor([0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7FFFFF, 0x00000001, 0x80008000])
    nans = torch.tensor([0x7FFFFFFF, 0x7FC00000, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0xFF800000, 0x80000000])
    P = torch.cat([words, ties, nans]).to(torch.int32).view(torch.float32)
    b = buffers(P.numel(), average=False)
    b.P.copy_(P)
    for t in (b.G, b.M, b.V):
        t.zero_()
    update_triton(b, coefficients(lr=0.0))
    wanted = P.to(torch.bfloat16)
    number = ~P.isnan()
    assert torch.equal(b.W[number].view(torch.int16), wanted[number].view(torch.int16))
    assert b.W[~number].isnan().all() and (~number).sum() > 10
