"""Plain validation: the loss on pinned held-out rows, weighted as the data line is.

A source's loss is the mean over its strata by their shares; `mix` weights the sources by the recipe; `mean`
is the plain mean over the sources.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.rows.source import ValidationRows

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
