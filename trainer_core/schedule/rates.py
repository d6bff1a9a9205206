"""Learning rate, weight decay and the weight of an average as pure functions of the tokens trained.

An update's rate is read at its end token count, so the first update of a warm-up already moves and the last
update of a decay reaches the minimum. A skipped update consumes its tokens: it does not shift the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trainer_core.schedule.pieces import piece_at


@dataclass(frozen=True, kw_only=True)
class RatePiece:
    """One piece of the learning-rate schedule."""

    start: int
    """Tokens at which it begins."""
    end: int | None
    """Tokens at which it ends; None for open (only `constant`)."""
    kind: Literal["warmup", "constant", "decay"]
    """warmup: linear from 0 to the peak; constant: the peak; decay: linear from the peak to the minimum."""


def learning_rate(pieces: Sequence[RatePiece], tokens: int, *, peak_lr: float, min_lr: float) -> float:
    """Rate of the update that ends at `tokens` tokens; one that ends on a border belongs to the piece before.

    warmup: peak * t; constant: peak; decay: peak + (min - peak) * t, with t the part of the piece behind.
    """
    piece = piece_at(pieces, max(tokens - 1, 0))
    if piece.kind == "constant":
        return peak_lr
    assert piece.end is not None
    progress = min(1.0, (tokens - piece.start) / (piece.end - piece.start))
    if piece.kind == "warmup":
        return peak_lr * progress
    return peak_lr + (min_lr - peak_lr) * progress


def weight_decay(decay: float, *, update_tokens: int, decay_batch: int | None) -> float:
    """Decay of an update: constant, or proportional to its tokens over `decay_batch`.

    The second keeps AdamW's time scale in tokens fixed when the batch grows (Bergsma et al., 2505.13738).
    """
    return decay if decay_batch is None else decay * update_tokens / decay_batch


def average_weight(tokens: int, *, update_tokens: int, horizon_tokens: int, from_tokens: int) -> float:
    """Weight of the new parameters in their moving average, for the update that ends at `tokens` tokens.

    1 up to `from_tokens`: the average is a copy of the parameters. After that the update's tokens over the
    horizon (Zhang et al., 2410.21676, evaluate such an average of a run at a constant rate).
    """
    return 1.0 if tokens <= from_tokens else update_tokens / horizon_tokens
