"""What is due between two updates, as a pure function of where the line stands and its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from trainer_core.line.config import RunConfig
from trainer_core.train.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Due:
    """What the boundary after an update asks for."""

    ended_cycle: int | None
    """The cycle that ended with the update."""
    new_length: int | None
    """Row length of the next update of the same cycle or the next, where it differs."""
    validation: bool
    """Whether to validate."""
    kept: str | None
    """Why the checkpoint of this boundary is kept for good; None where it is rolling or there is none."""
    checkpoint: bool
    """Whether to save."""


def due_after(config: RunConfig, length: int, after: Progress) -> Due:
    """What is due after an update in rows of `length` that ended at `after`."""
    ended = after.at_cycle_start
    finished = config.end_tokens is not None and after.tokens >= config.end_tokens
    next_length = config.row_length(after.tokens)
    changed = after.position.row == 0 and not finished and next_length != length
    kept = "end" if finished else "cycle-end" if ended else "length-change" if changed else None
    return Due(
        ended_cycle=after.position.cycle - 1 if ended else None,
        new_length=next_length if changed else None,
        validation=ended or changed or finished or after.update % config.validation.every_updates == 0,
        kept=kept,
        checkpoint=kept is not None or after.update % config.checkpoints.every_updates == 0,
    )
