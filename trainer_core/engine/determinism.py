"""The switches under which equal inputs give equal bits: lines train with them, and are measured so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def be_deterministic() -> None:
    """Set them for the rest of the process: operators that cannot repeat their bits raise RuntimeError."""
    # What makes matrix products repeat their bits on a GPU; read when its library is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same switch as use_deterministic_algorithms, without importing the compiler (seconds of start-up).
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def deterministic() -> Iterator[None]:
    """They are set inside; torch's are put back at the end."""
    mode = torch.get_deterministic_debug_mode()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    be_deterministic()
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
