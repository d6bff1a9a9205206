"""The numbers of one update: what the schedule gives it, and its row of the ledger. Values in, values out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trainer_core.data.rows.source import RowBatch
from trainer_core.engine.step import UpdateResult, UpdateScalars
from trainer_core.line.config import Length, RunConfig
from trainer_core.schedule.rates import learning_rate, weight_decay
from trainer_core.train.progress import Progress


def update_scalars(config: RunConfig, before: Progress, after: Progress) -> UpdateScalars:
    """Rate and decay of an update, read at its end token; the decay also follows its tokens, if asked to."""
    optimizer = config.optimizer
    return UpdateScalars(
        lr=learning_rate(
            config.rate_pieces, after.tokens, peak_lr=optimizer.peak_lr, min_lr=optimizer.min_lr
        ),
        weight_decay=weight_decay(
            optimizer.weight_decay,
            update_tokens=after.tokens - before.tokens,
            decay_batch=optimizer.weight_decay_batch,
        ),
        clip=optimizer.clip,
        beta1=optimizer.betas[0],
        beta2=optimizer.betas[1],
        eps=optimizer.eps,
    )


def update_row(
    before: Progress,
    after: Progress,
    *,
    batch: RowBatch,
    shape: Length,
    mode: str,
    scalars: UpdateScalars,
    result: UpdateResult,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """The ledger row of an update, without its time."""
    where = before.position
    return {
        "tokens": after.tokens,
        "cycle": where.cycle,
        "part": where.part,
        "row": where.row,
        "rows": batch.source_rows,
        "samples": batch.samples,
        "shape": f"{shape.rows}x{shape.length}",
        "mode": mode,
        "train/loss": finite(result.loss),
        "lr": scalars.lr,
        "weight_decay": scalars.weight_decay,
        "skipped": result.skipped,
        "train/grad_norm": finite(result.grad_norm),
        **{f"train/grad_norm/{label}": finite(norm) for label, norm in result.norms.items()},
        "seconds": seconds,
    }


def finite(value: float) -> float | None:
    """JSON has no NaN or infinity: a reading that is not finite is null."""
    return value if math.isfinite(value) else None
