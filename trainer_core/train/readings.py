"""The numbers of one update: what the schedule gives it, and its row of the ledger. Values in, values out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.engine.step import UpdateResult, UpdateScalars
from trainer_core.line.config import Length, RunConfig
from trainer_core.schedule.rates import average_weight, learning_rate, weight_decay
from trainer_core.train.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Asked:
    """An update by what is known when it is asked for; it holds no rows."""

    before: Progress
    """Where it begins."""
    after: Progress
    """Where it ends."""
    source_rows: Mapping[str, int]
    """Its rows per source."""
    samples: str
    """Digest of its sample ids."""
    shape: Length
    """Shape it is trained in."""
    scalars: UpdateScalars
    """What the schedule and the configuration give it."""


def update_scalars(config: RunConfig, before: Progress, after: Progress) -> UpdateScalars:
    """Rate, decay and weight of the average, read at the end token of an update.

    The decay follows the update's tokens too, if asked to; the weight does so where there is an average.
    """
    optimizer, tokens = config.optimizer, after.tokens - before.tokens
    return UpdateScalars(
        lr=learning_rate(
            config.rate_pieces, after.tokens, peak_lr=optimizer.peak_lr, min_lr=optimizer.min_lr
        ),
        weight_decay=weight_decay(
            optimizer.weight_decay,
            update_tokens=tokens,
            decay_batch=optimizer.weight_decay_batch,
        ),
        clip=optimizer.clip,
        beta1=optimizer.betas[0],
        beta2=optimizer.betas[1],
        eps=optimizer.eps,
        ema_weight=1.0
        if config.ema is None
        else average_weight(
            after.tokens,
            update_tokens=tokens,
            horizon_tokens=config.ema.horizon_tokens,
            from_tokens=config.ema.from_tokens,
        ),
    )


def update_row(
    asked: Asked, *, result: UpdateResult, mode: str, seconds: Mapping[str, float]
) -> dict[str, Any]:
    """The ledger row of an update, without its time."""
    where, shape = asked.before.position, asked.shape
    return {
        "tokens": asked.after.tokens,
        "cycle": where.cycle,
        "part": where.part,
        "row": where.row,
        "rows": asked.source_rows,
        "samples": asked.samples,
        "shape": f"{shape.rows}x{shape.length}",
        "mode": mode,
        "train/loss": finite(result.loss),
        "lr": asked.scalars.lr,
        "weight_decay": asked.scalars.weight_decay,
        "skipped": result.skipped,
        "train/grad_norm": finite(result.grad_norm),
        **{f"train/grad_norm/{label}": finite(norm) for label, norm in result.norms.items()},
        "seconds": seconds,
    }


def finite(value: float) -> float | None:
    """JSON has no NaN or infinity: a reading that is not finite is null."""
    return value if math.isfinite(value) else None
