"""The switches under which equal inputs give equal bits: lines train with them, and are measured so.

`exact` is what a line has unless it asks for `fast`: there operators may add in any order where that is
quicker, and a resumed line is as good as the uninterrupted one, but not the same. On a CPU both are the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Exactness = Literal["exact", "fast"]
"""exact: equal inputs give equal bits, or an error; fast: whatever is quickest."""


def set_exactness(exactness: Exactness) -> None:
    """Set the switches for the rest of the process.

    With `exact`, operators that cannot repeat their bits raise RuntimeError.
    """
    if exactness == "fast":
        torch.set_deterministic_debug_mode("default")
        return
    # What makes matrix products repeat their bits on a GPU; read when its library is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same switch as use_deterministic_algorithms, without importing the compiler (seconds of start-up).
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def exactness_of(exactness: Exactness) -> Iterator[None]:
    """The switches are set inside; torch's are put back at the end."""
    mode = torch.get_deterministic_debug_mode()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    set_exactness(exactness)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
