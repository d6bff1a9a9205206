"""The kernel of the rotation equals the twin, forth and back, wherever heads lie in memory."""

import pytest
import torch
from torch import Tensor

from tests.kernels.sizes import SIZES, assert_alike
from trainer_core.kernels.rope import op, rotate
from trainer_core.kernels.rope.reference import rotate_reference
from trainer_core.models.blocks import rope_tables


def _draw(B: int, H: int, T: int, d: int, layout: str, seed: int) -> Tensor:
    shape = (B, H, T, d) if layout == "heads apart" else (B, T, H, 3 * d)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x if layout == "heads apart" else x[..., d : 2 * d].transpose(1, 2)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("layout", ["heads apart", "a slice"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 3, 33, 10), (1, 2, 31, 16), (2, 1, 32, 64)])
def test_rotation(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    layout: str,
    keep: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(op, "launches", lambda *_: True)
    T, d = shape[-2:]
    cos, sin = (t[3 : 3 + T] for t in rope_tables(40, d, 10_000.0, torch.float32))
    x, grad = (_draw(*shape, layout, seed).to(dtype) for seed in range(2))
    leaf, exact = x.requires_grad_(), x.detach().double().requires_grad_()
    out = rotate(leaf, cos, sin, keep_layout=keep)
    twin = rotate_reference(exact, cos.double(), sin.double())
    bar = 2.0**-8 if dtype == torch.bfloat16 else 1e-6
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), twin, atol=1e-6, rtol=bar)
    got, wanted = torch.autograd.grad(out, leaf, grad)[0], torch.autograd.grad(twin, exact, grad.double())[0]
    torch.testing.assert_close(got.double(), wanted, atol=1e-6, rtol=bar)
    if keep and layout == "a slice":
        assert out.transpose(1, 2).is_contiguous() and got.transpose(1, 2).is_contiguous()
    else:
        assert out.is_contiguous() and got.is_contiguous()


@pytest.mark.parametrize("size", SIZES)
def test_values_of_any_size(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "launches", lambda *_: True)
    tables = rope_tables(33, 16, 10_000.0, torch.float32)
    x = (_draw(1, 2, 33, 16, "heads apart", 0) * SIZES[size]).requires_grad_()
    out = rotate(x, *tables)
    assert_alike(out.detach(), rotate_reference(x.detach().double(), *(t.double() for t in tables)), 1e-6)
    (back,) = torch.autograd.grad(out, x, out.detach())
    assert_alike(back, x.detach(), 1e-6)


def test_what_is_not_a_number_stays_in_its_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "launches", lambda *_: True)
    x = torch.ones(1, 2, 3, 4)
    x[0, 1, 1, 2] = torch.nan
    found = rotate(x, *rope_tables(3, 4, 10_000.0, torch.float32)).isnan().any(-1)
    assert found.nonzero().tolist() == [[0, 1, 1]]
