"""The consumer record: which training line reads a data line, in which row lengths and batch sizes.

Written by `new` and `branch`, and grown when a line's schedule grows; cycles are planned by it. Append-only:
the past of both schedules never changes, and one data line has one consumer. Only a record that nothing came
of (no cycle is planned, and its line was never made) gives way to another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer_core.data.plan.state_file import current_state
from trainer_core.data.records import read_record, refuse_other
from trainer_core.data.sources import load_data_line
from trainer_core.errors import Refused
from trainer_core.line.files import write_json
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import DataPaths, LinePaths
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

    def is_line(self, line: str | Path) -> bool:
        """Whether this is the training line, by whichever path it is named."""
        return Path(self.line).resolve() == Path(line).resolve()

    def row_length(self, tokens: int) -> int:
        """Row length in force."""
        return piece_at(self.row_lengths, tokens).value

    def batch(self, tokens: int) -> int:
        """Tokens per update of the update that starts at a token count."""
        return piece_at(self.batches, tokens).value

    def next_change(self, tokens: int) -> int | None:
        """First token count behind `tokens` at which either may be another, or None."""
        starts = (piece.start for piece in (*self.row_lengths, *self.batches))
        return min((start for start in starts if start > tokens), default=None)


def check_consumer(data_root: Path, *, row_length: int, tokens_per_update: int) -> list[str]:
    """What would keep cycles of this data line from feeding such a training line; [] = nothing."""
    if row_length < 1 or tokens_per_update < 1:
        return [f"row length {row_length} and {tokens_per_update} tokens per update: both must be at least 1"]
    cycle = load_data_line(data_root).cycle_tokens
    rows = tokens_per_update // row_length
    found = []
    if not rows:
        found.append(
            f"an update of {tokens_per_update:,} tokens holds no row of {row_length:,}; "
            "make updates larger or rows shorter"
        )
    if max(1, rows) * row_length > cycle:
        what = f"no update of {rows * row_length:,} tokens" if rows else f"no row of {row_length:,} tokens"
        found.append(
            f"{data_root}: a cycle of {cycle:,} tokens holds {what}; make updates smaller, or a data line "
            "with larger cycles (`nstrain data init --cycle-tokens`)"
        )
    return found


def register_consumer(
    data_root: Path,
    *,
    line: str | Path,
    row_lengths: Sequence[Mapping[str, int | None]],
    batch: Sequence[Mapping[str, int | None]],
) -> Consumer:
    """Record a training line, or grow its schedules; the same record again changes nothing.

    `row_lengths` is [{"from", "to", "length"}], `batch` [{"from", "to", "tokens"}], `to` null = open. Waits
    for a preparer at work, except to grow.
    """
    paths, consumer = DataPaths(data_root), _consumer(line, row_lengths, batch)
    found = _schedule_problems(consumer)
    if found:
        raise Refused(found)
    if paths.consumer.exists() and not _replaceable(paths, read_consumer(data_root)):
        return _grow(paths, consumer)
    with FileLock.acquire_waiting(paths.lock, role="new"):
        if paths.consumer.exists() and not _replaceable(paths, read_consumer(data_root)):
            return _grow(paths, consumer)
        write_json(paths.consumer, _json(consumer))
    return consumer


def growth_problems(
    data_root: Path,
    *,
    line: str | Path,
    row_lengths: Sequence[Mapping[str, int | None]],
    batch: Sequence[Mapping[str, int | None]],
) -> list[str]:
    """What would keep `register_consumer` from growing the record to these schedules; [] = nothing."""
    recorded, wanted = read_consumer(data_root), _consumer(line, row_lengths, batch)
    return _schedule_problems(wanted) or _growth_problems(DataPaths(data_root), recorded, wanted)


def read_consumer(data_root: Path) -> Consumer:
    """The record. Raises Refused naming `nstrain new` when no line has registered yet."""
    path = DataPaths(data_root).consumer
    if not path.exists():
        raise Refused(
            f"{data_root}: no training line reads this data line yet, so its row length is not known; "
            f"make one with `nstrain new RUN --data {data_root} ...`"
        )
    return read_record(
        path,
        FORMAT,
        _checked,
        way_out="restore it from a backup; while no cycle is planned it may be deleted and `nstrain new` run",
    )


def _consumer(
    line: str | Path,
    row_lengths: Sequence[Mapping[str, int | None]],
    batch: Sequence[Mapping[str, int | None]],
) -> Consumer:
    return Consumer(
        line=str(Path(line).absolute()),
        row_lengths=_pieces(row_lengths, "length"),
        batches=_pieces(batch, "tokens"),
    )


def _checked(value: dict[str, Any]) -> Consumer:
    consumer = Consumer(
        line=value["line"],
        row_lengths=_pieces(value["row_lengths"], "length"),
        batches=_pieces(value["batch"], "tokens"),
    )
    refuse_other(value, _json(consumer))
    found = _schedule_problems(consumer)
    if found:
        raise ValueError("; ".join(found))
    return consumer


def _replaceable(paths: DataPaths, recorded: Consumer) -> bool:
    """Whether nothing came of the record: no cycle is planned by it and its line was never made."""
    if LinePaths(Path(recorded.line)).run_json.exists():
        return False
    return current_state(paths).next_cycle == 0


def _schedule_problems(consumer: Consumer) -> list[str]:
    found = problems(consumer.row_lengths, "row_lengths") + problems(consumer.batches, "batch")
    for key, pieces in (("row_lengths", consumer.row_lengths), ("batch", consumer.batches)):
        found += [
            f"{key}[{i}]: {piece.value} must be at least 1"
            for i, piece in enumerate(pieces)
            if piece.value < 1
        ]
    return found


def _grow(paths: DataPaths, new: Consumer) -> Consumer:
    """Replace the record by one that goes on from it."""
    old = read_consumer(paths.root)
    found = _growth_problems(paths, old, new)
    if found:
        raise Refused(found)
    grown = replace(new, line=old.line)
    if grown != old:
        write_json(paths.consumer, _json(grown))
    return grown


def _growth_problems(paths: DataPaths, old: Consumer, new: Consumer) -> list[str]:
    if not old.is_line(new.line):
        there = LinePaths(Path(old.line)).run_json.exists()
        again = "" if there else f". There is no line at {old.line} now; one made there anew takes its place"
        return [
            f"{paths.root}: already read by the training line {old.line}; a data line has one consumer. "
            f"Make another data line for {new.line} (`nstrain data init --calibration-from {paths.root}`)"
            + again
        ]
    planned = current_state(paths).start_token
    found = []
    for key, before, after in (
        ("row_lengths", old.row_lengths, new.row_lengths),
        ("batch", old.batches, new.batches),
    ):
        if not _grown(before, after, planned):
            found.append(
                f"{paths.consumer}: {key} may only grow at its end and after the {planned:,} tokens that are "
                f"planned; recorded {[_shown(p) for p in before]}, found {[_shown(p) for p in after]}; keep "
                f"{before[-1].value} up to {planned:,} tokens and begin another value there or later"
            )
    return found


def _grown(before: Sequence[ConsumerPiece], after: Sequence[ConsumerPiece], planned: int) -> bool:
    """Whether all values below `planned` and all closed pieces are kept.

    Cycles may be planned past the end of a closed schedule, where its last value stays in force.
    """
    if tuple(after[: len(before) - 1]) != tuple(before[:-1]) or len(after) < len(before):
        return False
    old, new = before[-1], after[len(before) - 1]
    if (old.start, old.value) != (new.start, new.value):
        return False
    if any(piece.start < planned and piece.value != old.value for piece in after[len(before) :]):
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
