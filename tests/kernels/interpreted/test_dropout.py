"""The kernel of dropout keeps exactly the elements that its twin keeps, with exactly its values."""

import pytest
import torch

from trainer_core.kernels.dropout.reference import dropout_reference
from trainer_core.kernels.dropout.triton import dropout_triton

COUNTERS = {
    "small": (0, 0, 0),
    "usual": (1234, 57_001, 7),
    "wide": ((1 << 53) + 12345, (1 << 33) + 5, 3),
    "negative seed": (-5, 1, 2),
}


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1, 1023, 1024, 1025, 5000])
def test_equal_bits(n: int, dtype: torch.dtype, counter: str) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    least = 1e-40 if dtype == torch.float32 else 1e-33  # the interpreter reads a denormal bfloat16 as 0
    x = (x * torch.tensor([1.0, 1e30, 1e-30, least]).repeat(n // 4 + 1)[:n]).to(dtype)
    words = torch.tensor(COUNTERS[counter])
    for site, p in ((0, 0.1), (91, 0.5), ((1 << 31) - 1, 0.97)):
        ours = dropout_triton(x, words, site, p, block=1024)
        assert ours.dtype == dtype
        assert torch.equal(ours, dropout_reference(x, words, site, p)), (site, p)
