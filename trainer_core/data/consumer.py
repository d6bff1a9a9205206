"""The consumer record: which training line reads a data line, in which row lengths and batch sizes.

Written by `new` and `branch`, and grown when a line's schedule grows; cycles are planned by it. Append-only:
the past of both schedules never changes, and one data line has one consumer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.errors import Refused
from trainer_core.line.files import read_json, write_json
from trainer_core.line.paths import DataPaths
from trainer_core.schedule.pieces import piece_at, problems

FORMAT = "consumer/1"


@dataclass(frozen=True, kw_only=True)
class ConsumerPiece:
    """A value in force over an interval of trained tokens."""

    start: int
    """First token."""
    end: int | None
    """Token after the last, or None for an open end."""
    value: int
    """Row length, or tokens per update."""


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """The record of consumer.json."""

    line: str
    """Absolute path of the training line."""
    row_lengths: tuple[ConsumerPiece, ...]
    """Row length (L) by tokens trained."""
    batches: tuple[ConsumerPiece, ...]
    """Tokens per update by tokens trained, read at an update's first token."""

    def row_length(self, tokens: int) -> int:
        """Row length in force."""
        return piece_at(self.row_lengths, tokens).value

    def row_length_end(self, tokens: int) -> int | None:
        """Token count at which the row length in force ends, or None."""
        return piece_at(self.row_lengths, tokens).end

    def batch(self, tokens: int) -> int:
        """Tokens per update of the update that starts at a token count."""
        return piece_at(self.batches, tokens).value


def register_consumer(
    data_root: Path,
    *,
    line: str | Path,
    row_lengths: Sequence[Mapping[str, int | None]],
    batch: Sequence[Mapping[str, int | None]],
) -> Consumer:
    """Record a training line, or grow its schedules; the same record again changes nothing.

    `row_lengths` is [{"from", "to", "length"}], `batch` [{"from", "to", "tokens"}], `to` null = open.
    """
    paths = DataPaths(data_root)
    consumer = Consumer(
        line=str(line),
        row_lengths=_pieces(row_lengths, "length"),
        batches=_pieces(batch, "tokens"),
    )
    found = problems(consumer.row_lengths, "row_lengths") + problems(consumer.batches, "batch")
    for key, pieces in (("row_lengths", consumer.row_lengths), ("batch", consumer.batches)):
        found += [
            f"{key}[{i}]: {piece.value} must be at least 1"
            for i, piece in enumerate(pieces)
            if piece.value < 1
        ]
    if paths.consumer.exists() and not found:
        found = _growth_problems(paths, read_consumer(data_root), consumer)
    if found:
        raise Refused(found)
    value = _json(consumer)
    if not paths.consumer.exists() or read_json(paths.consumer) != value:
        write_json(paths.consumer, value)
    return consumer


def read_consumer(data_root: Path) -> Consumer:
    """The record. Raises Refused naming `nstrain new` when no line has registered yet."""
    path = DataPaths(data_root).consumer
    if not path.exists():
        raise Refused(
            f"{data_root}: no training line reads this data line yet, so its row length is not known; "
            f"make one with `nstrain new RUN --data {data_root} ...`"
        )
    value = read_json(path)
    return Consumer(
        line=value["line"],
        row_lengths=_pieces(value["row_lengths"], "length"),
        batches=_pieces(value["batch"], "tokens"),
    )


def _growth_problems(paths: DataPaths, old: Consumer, new: Consumer) -> list[str]:
    if old.line != new.line:
        return [
            f"{paths.root}: already read by the training line {old.line}; a data line has one consumer. "
            f"Make another data line for {new.line} (`nstrain data init --calibration-from {paths.root}`)"
        ]
    planned = read_json(paths.state)["start_token"] if paths.state.exists() else 0
    found = []
    for key, before, after in (
        ("row_lengths", old.row_lengths, new.row_lengths),
        ("batch", old.batches, new.batches),
    ):
        if not _grown(before, after, planned):
            found.append(
                f"{paths.consumer}: {key} may only grow at its end and after the {planned:,} tokens that are "
                f"planned; recorded {[_shown(p) for p in before]}, found {[_shown(p) for p in after]}"
            )
    return found


def _grown(before: Sequence[ConsumerPiece], after: Sequence[ConsumerPiece], planned: int) -> bool:
    """Whether all values below `planned` and all closed pieces are kept."""
    if tuple(after[: len(before) - 1]) != tuple(before[:-1]) or len(after) < len(before):
        return False
    old, new = before[-1], after[len(before) - 1]
    if (old.start, old.value) != (new.start, new.value):
        return False
    return new.end == old.end or (old.end is None and new.end is not None and new.end >= planned)


def _shown(piece: ConsumerPiece) -> str:
    return f"{piece.start}..{'' if piece.end is None else piece.end}: {piece.value}"


def _pieces(values: Sequence[Mapping[str, int | None]], key: str) -> tuple[ConsumerPiece, ...]:
    result = []
    for value in values:
        start, number = value["from"], value[key]
        assert start is not None and number is not None
        result.append(ConsumerPiece(start=start, end=value["to"], value=number))
    return tuple(result)


def _json(consumer: Consumer) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "line": consumer.line,
        "row_lengths": [{"from": p.start, "to": p.end, "length": p.value} for p in consumer.row_lengths],
        "batch": [{"from": p.start, "to": p.end, "tokens": p.value} for p in consumer.batches],
    }
