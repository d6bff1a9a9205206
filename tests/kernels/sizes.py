"""Values of any size for the tests of interpreted kernels, and a comparison relative to the largest."""

from __future__ import annotations

from torch import Tensor

SIZES = {"large": 1e12, "tiny": 1e-12, "denormal": 1e-40}
"""About the size of the values by name."""

LEAST = 1e-44
"""Numbers of float32 this close to zero have one bit."""


def assert_alike(got: Tensor, wanted: Tensor, bar: float, what: str = "") -> None:
    """No element is off by more than `bar` of the largest one, however small that is."""
    assert got.shape == wanted.shape and got.isfinite().all(), what
    largest = wanted.double().abs().max().item()
    off = (got.double() - wanted.double()).abs().max().item()
    assert largest > 0 and off <= max(bar * largest, LEAST), f"{what}: off by {off} of {largest}"
