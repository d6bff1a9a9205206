"""What the step asks of a backend: record a part once, run it again as often as wanted.

A recorded part takes no arguments and returns nothing: it reads and writes tensors whose storage outlives it
(static inputs, the scalar block, the flat state), so that a captured graph and a plain call mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol


class GraphBackend(Protocol):
    """Records parts of the step by key and replays them."""

    def capture(self, key: Hashable, part: Callable[[], None]) -> Hashable:
        """Records `part` under `key`, without a lasting effect on the training state; returns its handle."""
        ...

    def replay(self, handle: Hashable) -> None:
        """Runs a recorded part on the present contents of its tensors."""
        ...

    def release(self) -> None:
        """Forgets every recorded part and frees what it held."""
        ...
