"""The kernels that sum by index equal their twins: any segments, crossing any number of chunks."""

import pytest
import torch
from torch import Tensor

from tests.kernels.sizes import SIZES, assert_alike
from trainer_core.kernels.segment_sum.reference import segment_sum_reference, weighted_rows_reference
from trainer_core.kernels.segment_sum.triton import (
    BLOCK,
    MAX_CHUNKS,
    MIN_CHUNK,
    add_segments_triton,
    chunk_size,
    weighted_rows_triton,
    weights_gradient_triton,
)

SIZE, CHUNK = 9, 8


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


INDICES = {
    "one row": torch.tensor([4]),
    "chunk - 1": torch.randint(SIZE, (CHUNK - 1,), generator=_generator(0)),
    "chunk": torch.randint(SIZE, (CHUNK,), generator=_generator(1)),
    "chunk + 1": torch.randint(SIZE, (CHUNK + 1,), generator=_generator(2)),
    "one segment": torch.full((12 * CHUNK + 3,), 7),
    "segments end with chunks": torch.arange(4).repeat_interleave(CHUNK),
    "segments end after chunks": torch.arange(4).repeat_interleave(CHUNK + 1),
    "one takes most": torch.where(
        torch.rand(100, generator=_generator(3)) < 0.8,
        2,
        torch.randint(SIZE, (100,), generator=_generator(4)),
    ),
    "no rows": torch.zeros(0, dtype=torch.int64),
}


def _close(got: Tensor, wanted: Tensor, bar: float = 1e-5) -> None:
    size = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(got.double(), wanted.double(), atol=bar * size, rtol=bar)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", INDICES)
def test_sums_are_added_to_what_is_there(name: str, dtype: torch.dtype) -> None:
    index = INDICES[name]
    rows = torch.randn(len(index), 20, generator=_generator(5)).to(dtype)
    out = torch.randn(SIZE, 20, generator=_generator(6))
    before = out.clone()
    add_segments_triton(out, rows, index, None, chunk=CHUNK)
    _close(out, before.double() + segment_sum_reference(rows.double(), index, SIZE))
    untouched = ~torch.isin(torch.arange(SIZE), index)
    assert torch.equal(out[untouched], before[untouched])


def test_integers_are_summed_exactly_whatever_the_values_left_out() -> None:
    """No row of another segment leaks, not even one that is not a number."""
    index = torch.arange(4).repeat_interleave(CHUNK + 3)
    rows = torch.ones(len(index), 3)
    rows[index == 1] = torch.nan
    out = torch.zeros(SIZE, 3)
    add_segments_triton(out, rows, index, None, chunk=CHUNK)
    assert out[:, 0].nan_to_num(nan=-1).tolist() == [11, -1, 11, 11, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("n", "k", "d"), [(1, 1, 16), (7, 3, 20), (12, 4, 33), *((2, 2, BLOCK + more) for more in (-1, 0, 1))]
)
def test_weighted_rows_and_their_gradients(n: int, k: int, d: int, dtype: torch.dtype) -> None:
    table = torch.randn(SIZE, d, generator=_generator(7)).to(dtype)
    slots = torch.randint(SIZE, (n, k), generator=_generator(8))
    slots[: n // 2] = 5
    weights = torch.rand(n, k, generator=_generator(9))
    grad = torch.randn(n, d, generator=_generator(10)).to(dtype)
    exact, exact_weights = (t.double().requires_grad_() for t in (table, weights))
    wanted = weighted_rows_reference(exact, slots, exact_weights)
    wanted.backward(grad.double())
    out = weighted_rows_triton(table, slots, weights)
    assert out.dtype == dtype
    _close(out, wanted.detach(), 1e-5 if dtype == torch.float32 else 2.0**-8)
    assert exact.grad is not None and exact_weights.grad is not None
    _close(weights_gradient_triton(grad, table, slots), exact_weights.grad)
    sums = torch.zeros(SIZE, d)
    add_segments_triton(sums, grad, slots, weights, chunk=CHUNK)
    _close(sums, exact.grad)


@pytest.mark.parametrize("size", SIZES)
def test_values_of_any_size(size: str) -> None:
    n, k, d = 12, 4, 20
    slots = torch.randint(SIZE, (n, k), generator=_generator(1))
    weights = torch.rand(n, k, generator=_generator(2))
    table, grad = (torch.randn(m, d, generator=_generator(m)) for m in (SIZE, n))
    table *= SIZES[size]
    exact = [t.double().requires_grad_() for t in (table, weights)]
    twin = weighted_rows_reference(exact[0], slots, exact[1])
    d_table, d_weights = torch.autograd.grad(twin, exact, grad.double())
    assert_alike(weighted_rows_triton(table, slots, weights), twin.detach(), 1e-6)
    assert_alike(weights_gradient_triton(grad, table, slots), d_weights, 1e-6)
    rows, index = grad * SIZES[size], slots[:, 0].contiguous()
    weighted, plain = torch.zeros(2, SIZE, d)
    add_segments_triton(weighted, rows, slots, weights, chunk=CHUNK)
    assert_alike(weighted, d_table * SIZES[size], 1e-6)
    add_segments_triton(plain, rows, index, None, chunk=CHUNK)
    assert_alike(plain, segment_sum_reference(rows.double(), index, SIZE), 1e-6)


def test_parts_stay_few_however_many_rows() -> None:
    for n in (1, 1000, MIN_CHUNK * MAX_CHUNKS, MIN_CHUNK * MAX_CHUNKS + 1, 5_000_000):
        assert chunk_size(n) >= MIN_CHUNK and -(-n // chunk_size(n)) <= MAX_CHUNKS
