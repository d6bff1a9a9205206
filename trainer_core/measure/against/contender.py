"""What a contender of a comparison is, and ours. Each trains one update per call and tells its loss.

All of them get the same initial weights, rows and settings of AdamW, so that the losses of the first updates
show whether they train the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from trainer_core.engine.assemble import Compile, Precision
from trainer_core.measure.throughput import Rig, Workload

Batches = Sequence[Sequence[Tensor]]
"""The micro-batches of every update: int64 rows [rows, seq_len + 1] on the host."""


class Contender(Protocol):
    """A trainer that can be asked for one update at a time."""

    def update(self) -> float:
        """Trains on the next update's micro-batches; its mean loss in nats, before the update."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


MakeContender = Callable[[Workload, Batches], Contender]


class Nstrain:
    """The engine of this project."""

    def __init__(self, workload: Workload, batches: Batches) -> None:
        self._rig = Rig(workload)
        self._rows = iter(batches)

    def update(self) -> float:
        return self._rig.update(list(next(self._rows))).loss

    def close(self) -> None:
        self._rig.step.release()


def nstrain(precision: Precision, compile: Compile) -> MakeContender:
    """The engine in a precision, with what is compiled."""
    return lambda workload, batches: Nstrain(replace(workload, precision=precision, compile=compile), batches)
