"""What is wrong in a run.json although every field of it is valid: values that do not fit each other.

Pure: reads no file and changes nothing. Every problem is a sentence that names the file and the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_core.line.kept import DATA_IDENTITY, KEPT_KEYS
from trainer_core.schedule.batch import UpdateSpan
from trainer_core.schedule.pieces import ValuePiece, problems, runs

if TYPE_CHECKING:  # config.py calls this module
    from trainer_core.line.config import RunConfig

MOST_MICRO_TOKENS = 1 << 24
"""Tokens of a micro-batch; far more than any device has memory for, and a trace of more would take hours."""


def cross_checks(config: RunConfig, where: Path) -> list[str]:
    """Problems that one field alone does not show."""
    pieces = [
        *problems(config.rate_pieces, "schedule"),
        *problems(config.batch_pieces, "tokens_per_update"),
        *_shape_problems(config),
    ]
    found = [
        *pieces,
        *_rate_problems(config),
        *_kept_problems(config),
        *_average_problems(config),
        # Updates can only be counted where the pieces they are read from are right.
        *([] if pieces else _update_problems(config)),
    ]
    if not Path(config.data).is_absolute():
        found.append(f"data: expected an absolute path, found {config.data!r}")
    return [f"{where}: {problem}" for problem in found]


def too_long(config: RunConfig, positions: int | None) -> list[str]:
    """Row lengths that a model of so many positions (None = no limit known) cannot read."""
    return [
        f"lengths[{index}].length: {shape.length} is longer than the model's {positions} positions"
        for index, shape in enumerate(config.lengths)
        if positions is not None and shape.length > positions
    ]


def not_recomputable(config: RunConfig, modes: Sequence[str]) -> list[str]:
    """Shapes that ask for a recomputation that the model's family does not have."""
    return [
        f"lengths[{index}].ac: {shape.ac!r} is nothing that {config.model.family} can recompute; expected "
        f"{', '.join(modes)}"
        for index, shape in enumerate(config.lengths)
        if shape.ac not in modes
    ]


def too_many_tokens(rows: int, length: int) -> str:
    """Why a micro-batch of so many rows is none."""
    return (
        f"{rows} rows of {length} are a micro-batch of {rows * length:,} tokens; expected at most "
        f"{MOST_MICRO_TOKENS:,}"
    )


def _rate_problems(config: RunConfig) -> list[str]:
    found = [
        f"schedule[{index}].to: a {piece.kind} piece needs an end"
        for index, piece in enumerate(config.schedule)
        if piece.kind != "constant" and piece.end is None
    ]
    if config.optimizer.min_lr > config.optimizer.peak_lr:
        found.append("optimizer.min_lr: must not be above peak_lr")
    for key, beta in zip(("betas.0", "betas.1"), config.optimizer.betas, strict=True):
        if not 0 <= beta < 1:
            found.append(f"optimizer.{key}: expected 0 <= beta < 1, found {beta}")
    return found


def _kept_problems(config: RunConfig) -> list[str]:
    known = (*KEPT_KEYS, DATA_IDENTITY)
    return [
        f"allow_changes: {key!r} is not a kept setting ({', '.join(known)})"
        for key in config.allow_changes
        if key.split(".")[0] not in known
    ]


def _average_problems(config: RunConfig) -> list[str]:
    """Whether the average can move as it is told to, and ever does."""
    ema, end = config.ema, config.end_tokens
    if ema is None:
        return []
    largest = max((piece.value for piece in config.batch_pieces), default=0)
    found = []
    if ema.horizon_tokens < largest:
        found.append(
            f"ema.horizon_tokens: expected at least the {largest} tokens of an update, found "
            f"{ema.horizon_tokens}"
        )
    if end is not None and ema.from_tokens >= end:
        found.append(
            f"ema.from_tokens: the average would never leave the parameters, for the schedule ends at {end} "
            f"tokens; expected fewer, found {ema.from_tokens}"
        )
    return found


def _shape_problems(config: RunConfig) -> list[str]:
    """Whether every row length in use has one shape, and every shape a row length in use."""
    if not config.lengths:
        return ["lengths: expected the micro-batch shape of at least one row length"]
    shapes = [shape.length for shape in config.lengths]
    too_many = [
        f"lengths[{index}].rows: {too_many_tokens(shape.rows, shape.length)}"
        for index, shape in enumerate(config.lengths)
        if shape.rows * shape.length > MOST_MICRO_TOKENS
    ]
    used = [piece.value for piece in config.length_pieces]
    found = [
        f"lengths[{index}]: rows of {length} have a shape already, in lengths[{shapes.index(length)}]"
        for index, length in enumerate(shapes)
        if length in shapes[:index]
    ]
    found += [
        f"schedule[{index}].length: lengths has no shape for rows of {length}, only for {shapes}"
        for index, length in enumerate(used)
        if length not in shapes
    ]
    return [*too_many, *found] + [
        f"lengths[{index}]: no piece of the schedule has rows of {length}; name them there (`length`), or "
        "take the shape out"
        for index, length in enumerate(shapes)
        if used and length not in used
    ]


def _update_problems(config: RunConfig) -> list[str]:
    """Updates that are no whole rows, pieces in which none begins, an end inside a row."""
    spans = config.spans()
    found = [
        f"tokens_per_update: expected a multiple of the row length {span.row_length} in force from "
        f"{span.start} tokens on, found {span.tokens}"
        for span in spans
        if span.tokens % span.row_length
    ]
    if found:
        return found
    end = config.end_tokens
    found = [
        f"tokens_per_update: updates of {piece.value} tokens are named {_passed_over(piece, end)}"
        for piece in _unused(config.batch_pieces, spans, end)
    ]
    found += [
        f"schedule: rows of {piece.value} are named {_passed_over(piece, end)}"
        for piece in _unused(runs(config.length_pieces), spans, end)
    ]
    if spans and config.end_tokens is not None:
        length = spans[-1].row_length
        first = next(span.start for span, before in _backwards(spans) if before != length)
        if (config.end_tokens - first) % length:
            found.append(
                f"schedule: expected an end at a multiple of the row length {length}"
                + (f" after the {first} tokens at which these rows begin" if first else "")
                + f", found {config.end_tokens}"
            )
    return found


def _backwards(spans: Sequence[UpdateSpan]) -> list[tuple[UpdateSpan, int | None]]:
    """Spans from the last to the first, each with the row length before it."""
    before = [None, *(span.row_length for span in spans[:-1])]
    return list(zip(spans, before, strict=True))[::-1]


def _unused(pieces: Sequence[ValuePiece], spans: Sequence[UpdateSpan], end: int | None) -> list[ValuePiece]:
    """Pieces that the line passes over, because no update begins in them."""
    return [
        piece
        for piece in pieces
        if (end is None or piece.start < end) and not any(_begins(span, piece) for span in spans)
    ]


def _passed_over(piece: ValuePiece, end: int | None) -> str:
    last = min(stop for stop in (piece.end, end) if stop is not None)
    return (
        f"between {piece.start} and {last} tokens, where no update begins; make the piece longer, or take it "
        "out"
    )


def _begins(span: UpdateSpan, piece: ValuePiece) -> bool:
    """Whether an update of the span begins in the piece."""
    first = span.start + max(0, -((span.start - piece.start) // span.tokens)) * span.tokens
    return all(stop is None or first < stop for stop in (span.end, piece.end))
