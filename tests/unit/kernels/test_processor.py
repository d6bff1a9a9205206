"""What a processor says of its matrix products in bfloat16, in the words of old and new versions of torch."""

import pytest
import torch

from trainer_core.kernels.processor import has_bf16_matmul


@pytest.fixture(autouse=True)
def _fresh():
    has_bf16_matmul.cache_clear()
    yield
    has_bf16_matmul.cache_clear()


def _says(
    patch: pytest.MonkeyPatch, *, features: dict | None, avx512: bool, amx: bool, library: bool
) -> None:
    patch.setattr(torch.backends.mkldnn, "is_available", lambda: library)
    if features is None:
        patch.delattr(torch.cpu, "get_capabilities", raising=False)
    else:
        patch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
    patch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512, raising=False)
    patch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)


@pytest.mark.parametrize(
    ("says", "has"),
    [
        ({"features": {"avx2": True}, "avx512": False, "amx": False, "library": True}, False),
        ({"features": {"avx512_bf16": True}, "avx512": True, "amx": False, "library": True}, True),
        ({"features": {"neon": True, "bf16": True}, "avx512": False, "amx": False, "library": True}, True),
        ({"features": None, "avx512": True, "amx": False, "library": True}, True),
        ({"features": None, "avx512": False, "amx": True, "library": True}, True),
        ({"features": None, "avx512": False, "amx": False, "library": True}, False),
        ({"features": {"avx512_bf16": True}, "avx512": True, "amx": True, "library": False}, False),
    ],
)
def test_it_is_asked_in_every_way(monkeypatch: pytest.MonkeyPatch, says: dict, has: bool) -> None:
    _says(monkeypatch, **says)
    assert has_bf16_matmul() is has


def test_a_torch_that_says_nothing_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("get_capabilities", "_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert has_bf16_matmul() is False
