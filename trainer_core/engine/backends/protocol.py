"""What the step asks of a backend: record a part once, run it again as often as wanted.

A recorded part takes no arguments and returns nothing: it reads and writes tensors whose storage outlives it
(static inputs, the scalar block, the flat state), so that a captured graph and a plain call mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Wait = Callable[[], None]
"""Returns when everything that was asked of the device before a mark is done."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of the step that is recorded as one."""

    key: Hashable
    """Name of the part, unique in a step."""
    run: Callable[[], None]
    """The work."""
    constants: tuple[Tensor, ...]
    """Tensors that the work reads and must not write."""
    rehearsal: Callable[[], AbstractContextManager[None]]
    """Inside it the work may run for real: whatever it changed is put back at the end."""


class GraphBackend(Protocol):
    """Records parts of the step and replays them."""

    def active(self) -> AbstractContextManager[None]:
        """Everything that the step asks of the device is asked inside: one order for copies and replays."""
        ...

    def capture(self, part: Part) -> None:
        """Records a part, without a lasting effect on the training state."""
        ...

    def replay(self, key: Hashable) -> None:
        """Runs a recorded part on the present contents of its tensors."""
        ...

    def release(self) -> None:
        """Forgets every recorded part and frees what it held."""
        ...

    def host_buffer(self, size: int, dtype: torch.dtype) -> Tensor:
        """Memory of the host that the device copies from and to without making the host wait."""
        ...

    def mark(self) -> Wait:
        """Marks the present end of what was asked of the device."""
        ...
