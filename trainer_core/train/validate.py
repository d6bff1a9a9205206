"""Plain validation: the loss on pinned held-out rows, weighted as the data line is.

A source's loss is the mean over its strata by their shares; `mix` weights the sources by the recipe; `mean`
is the plain mean over the sources.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.rows.source import RowSource, ValidationRows
from trainer_core.engine.step import Step
from trainer_core.line.config import RunConfig
from trainer_core.line.ledger import Ledger
from trainer_core.telemetry.goodput import Stopwatch
from trainer_core.train.progress import Progress
from trainer_core.train.readings import finite

Evaluate = Callable[[NDArray[np.int64]], tuple[float, int]]
"""Loss sum and number of targets of some rows [R, L+1]."""


def validate(
    rows: ValidationRows, evaluate: Evaluate, *, micro_rows: int, beat: Callable[[], None]
) -> dict[str, float]:
    """Losses in nats per token by the names `val_<L>/<source>`, `val_<L>/mix` and `val_<L>/mean`.

    `beat` is called before every micro-batch, so that a long validation shows life.
    """
    prefix = f"val_{rows.row_length}"
    losses: dict[str, float] = {}
    for source, strata in rows.sources.items():
        loss = weight = 0.0
        for stratum in strata:
            total, count = 0.0, 0
            for start in range(0, len(stratum.ids), micro_rows):
                beat()
                part_sum, part_count = evaluate(stratum.ids[start : start + micro_rows])
                total += part_sum
                count += part_count
            loss += stratum.share * total / count
            weight += stratum.share
        losses[source] = loss / weight
    mix = sum(rows.recipe.get(source, 0.0) * loss for source, loss in losses.items())
    shares = sum(rows.recipe.get(source, 0.0) for source in losses)
    return {
        **{f"{prefix}/{source}": loss for source, loss in losses.items()},
        f"{prefix}/mix": mix / shares,
        f"{prefix}/mean": sum(losses.values()) / len(losses),
    }


class Validator:
    """Validates one line and writes its readings; owns which rows are pinned for a row length and cycle."""

    def __init__(
        self,
        *,
        config: RunConfig,
        rows: RowSource,
        step: Step,
        ledger: Ledger,
        watch: Stopwatch,
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._rows = rows
        self._step = step
        self._ledger = ledger
        self._watch = watch
        self._say = say
        self._held: tuple[tuple[int, int], ValidationRows] | None = None

    def rows(self, row_length: int, cycle: int) -> ValidationRows:
        """The held-out rows of a length, with the recipe of a cycle."""
        if self._held is None or self._held[0] != (row_length, cycle):
            self._held = ((row_length, cycle), self._rows.validation(row_length, cycle))
        return self._held[1]

    def validate(self, at: Progress, row_length: int, cycle: int, beat: Callable[[], None]) -> None:
        """Validate the line as it stands at `at`, on the rows of the length and cycle of its last update.

        The moving average, where there is one, is validated on the same rows: `ema/val_<L>/...`.
        """
        rows, micro_rows = self.rows(row_length, cycle), self._config.shape(row_length).rows
        with self._watch.cause("validation"):
            losses = validate(rows, self._step.evaluate, micro_rows=micro_rows, beat=beat)
            if self._config.ema is not None:
                averaged = partial(self._step.evaluate, average=True)
                found = validate(rows, averaged, micro_rows=micro_rows, beat=beat)
                losses |= {f"ema/{name}": loss for name, loss in found.items()}
        readings = {name: finite(loss) for name, loss in losses.items()}
        self._ledger.append("validation", at.update, {"time": time.time(), "tokens": at.tokens, **readings})
        self._say(f"update {at.update}  validation mix {losses[f'val_{row_length}/mix']:.4f}")
