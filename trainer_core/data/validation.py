"""Validation rows of a data line: cut from its held-out streams, pinned by their digest.

`make_heldout` collects the streams (heldout.py) and cuts rows again whose record is lost; `cut_rows` pins the
rows of one length. Rows are packed like training rows: consecutive, stride L; documents of at least half a
row come first, so that long rows see long documents. Rows are a function of the data line, their length and
their number, so a lost record comes back identical.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.consumer import read_consumer
from trainer_core.data.heldout import make_streams, open_stream, read_heldout, stream_path
from trainer_core.data.records import read_record
from trainer_core.data.row_source import Ids, StratumRows, ValidationRows
from trainer_core.data.shards import Shard
from trainer_core.data.sources import DataLine, SourceSpec, load_data_line
from trainer_core.errors import Refused
from trainer_core.line.config import load_run
from trainer_core.line.files import canonical_json, write_json
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import DataPaths, LinePaths

__all__ = ["cut_rows", "load_rows", "make_heldout", "pack_rows", "rows_digests", "rows_path", "stream_path"]

ROWS_FORMAT = "heldout-rows/1"
TOKENS_PER_STRATUM = 1 << 20
"""Held-out tokens kept per stratum: 32 rows of 32,768."""

ReadStream = Callable[[str, str], Shard]
"""The held-out stream of a source and stratum."""


@dataclass(frozen=True, kw_only=True)
class StratumEntry:
    """Rows of one stratum."""

    stratum: str
    """Its name."""
    rows: int
    """Rows cut from its stream."""
    share: float
    """Weight within its source."""


@dataclass(frozen=True, kw_only=True)
class RowsRecord:
    """The record of the rows of one length."""

    row_length: int
    """Targets per row."""
    rows_per_stratum: int
    """Rows wanted of each stratum."""
    recipe: dict[str, float]
    """Share of each source in the recipe's first piece."""
    sources: dict[str, tuple[StratumEntry, ...]]
    """Strata by source."""
    notes: tuple[str, ...]
    """Strata that gave fewer rows than wanted."""
    sha256: str = ""
    """Digest of the rows and their weights."""

    def pinned(self) -> dict[str, Any]:
        """What the digest covers beside the rows."""
        value = {"format": ROWS_FORMAT, **asdict(self)}
        return {key: value[key] for key in ("format", "row_length", "rows_per_stratum", "recipe", "sources")}

    def to_json(self) -> dict[str, Any]:
        """The content of heldout/rows-<L>.json."""
        return {**self.pinned(), "notes": list(self.notes), "sha256": self.sha256}


def make_heldout(work: Path, *, tokens_per_stratum: int = TOKENS_PER_STRATUM) -> dict[str, Any]:
    """Collect the held-out token streams, once; the same call again changes nothing that is whole.

    Called again, it makes damaged streams anew, and cuts the rows of the training line's lengths that are
    missing. Both come out as they were.
    """
    from trainer_core.data.open_files import OpenFiles  # readers of rows need no tokenizer

    paths, line = DataPaths(Path(work)), load_data_line(Path(work))
    with FileLock.acquire_waiting(paths.lock, role="val"):
        record = make_streams(paths, line, OpenFiles(paths.root, line), tokens_per_stratum)
        for length, number in _wanted_rows(paths):
            if not rows_path(paths, length).exists():
                _cut_and_pin(paths, line, length, number)
    return record.to_json()


def cut_rows(work: Path, row_length: int, rows_per_stratum: int) -> dict[str, Any]:
    """Pin the validation rows of a length and return their record; the same call again changes nothing."""
    paths, line = DataPaths(Path(work)), load_data_line(Path(work))
    path = rows_path(paths, row_length)
    with FileLock.acquire_waiting(paths.lock, role="val"):
        if not path.exists():
            return _cut_and_pin(paths, line, row_length, rows_per_stratum).to_json()
        record = _read_rows(paths, row_length)
        if record.rows_per_stratum != rows_per_stratum:
            raise Refused(
                f"{path}: {record.rows_per_stratum} rows per stratum are pinned, {rows_per_stratum} "
                "were asked for; validation rows never change, keep the number"
            )
        return record.to_json()


def load_rows(work: Path, row_length: int, cycle: int = 0) -> ValidationRows:
    """The pinned rows of a length, weighted by the recipe piece in force at a cycle.

    Raises Refused when the held-out streams are not those the rows came from.
    """
    paths = DataPaths(Path(work))
    record, line = _read_rows(paths, row_length), load_data_line(paths.root)
    rows = _cut(record, _streams(paths, line))
    if rows.sha256 != record.sha256:
        path = rows_path(paths, row_length)
        raise Refused(
            f"{path}: the rows of length {row_length} are {rows.sha256}, {record.sha256} is pinned; "
            f"{_again(paths)}"
        )
    piece = line.piece_at(cycle)
    recipe = {name: share / piece.denominator for name, share in piece.shares.items() if name in rows.sources}
    return replace(rows, recipe=recipe)


def rows_digests(work: Path) -> dict[str, str]:
    """sha256 of the pinned rows by row length. Raises Refused when those of the training line are lost."""
    paths = DataPaths(Path(work))
    names = [path.stem.removeprefix("rows-") for path in paths.heldout.glob("rows-*.json")]
    lengths = {name for name in names if name.isdecimal()}
    lengths |= {str(length) for length, _ in _wanted_rows(paths)}
    return {length: _read_rows(paths, int(length)).sha256 for length in sorted(lengths)}


def rows_path(paths: DataPaths, row_length: int) -> Path:
    """Record of the rows of a length."""
    return paths.heldout / f"rows-{row_length}.json"


def pack_rows(shard: Shard, row_length: int, num_rows: int) -> Ids:
    """Up to `num_rows` consecutive rows of a stream, its documents of at least half a row first."""
    ends = shard.doc_ends.astype(np.int64)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]]) if len(ends) else ends
    long_first = np.argsort((ends - starts) * 2 < row_length, kind="stable")
    tokens: list[NDArray[Any]] = []
    held = 0
    for doc in long_first.tolist():
        if held > num_rows * row_length:
            break
        tokens.append(shard.tokens[starts[doc] : ends[doc]])
        held += int(ends[doc] - starts[doc])
    count = min(num_rows, max(0, held - 1) // row_length)
    ids = np.empty((count, row_length + 1), dtype=np.int64)
    if count:
        stream = np.concatenate(tokens)
        for row in range(count):
            ids[row] = stream[row * row_length : (row + 1) * row_length + 1]
    return ids


def _wanted_rows(paths: DataPaths) -> list[tuple[int, int]]:
    """Row lengths of the training line with the rows it wants of each stratum; none before it is made."""
    if not paths.consumer.exists():
        return []
    consumer = read_consumer(paths.root)
    line = LinePaths(Path(consumer.line))
    if not line.run_json.exists():
        return []
    number = load_run(line).validation.rows_per_stratum
    return [(piece.value, number) for piece in consumer.row_lengths]


def _again(paths: DataPaths) -> str:
    return f"delete it and run `nstrain data val --work {paths.root}`: the same rows are cut again"


def _read_rows(paths: DataPaths, row_length: int) -> RowsRecord:
    path = rows_path(paths, row_length)
    if not path.exists():
        raise Refused(
            f"{path}: no validation rows of {row_length} tokens; `nstrain new` cuts them, and `nstrain data "
            f"val --work {paths.root}` cuts those of a training line again"
        )
    record = read_record(path, ROWS_FORMAT, _from_json, way_out=_again(paths))
    if record.row_length != row_length:
        raise Refused(f"{path}: holds rows of {record.row_length} tokens; {_again(paths)}")
    return record


def _from_json(value: Mapping[str, Any]) -> RowsRecord:
    return RowsRecord(
        row_length=value["row_length"],
        rows_per_stratum=value["rows_per_stratum"],
        recipe=dict(value["recipe"]),
        sources={
            name: tuple(StratumEntry(**entry) for entry in strata)
            for name, strata in value["sources"].items()
        },
        notes=tuple(value["notes"]),
        sha256=value["sha256"],
    )


def _streams(paths: DataPaths, line: DataLine) -> ReadStream:
    heldout = read_heldout(paths, line)
    return lambda source, stratum: open_stream(paths, heldout, source, stratum)


def _cut_and_pin(paths: DataPaths, line: DataLine, row_length: int, wanted: int) -> RowsRecord:
    read = _streams(paths, line)
    draft = _draft(line, read, row_length, wanted)
    record = RowsRecord(**{**vars(draft), "sha256": _cut(draft, read).sha256})
    write_json(rows_path(paths, row_length), record.to_json())
    return record


def _draft(line: DataLine, read: ReadStream, row_length: int, wanted: int) -> RowsRecord:
    """Which stratum gives how many rows with which weight. Raises Refused naming sources without any row."""
    sources: dict[str, tuple[StratumEntry, ...]] = {}
    notes: list[str] = []
    empty: list[str] = []
    used = [spec for spec in line.sources if any(spec.name in piece.shares for piece in line.pieces)]
    for spec in used:
        streams = {stratum.name: read(spec.name, stratum.name) for stratum in spec.strata}
        found = {name: len(pack_rows(stream, row_length, wanted)) for name, stream in streams.items()}
        if not any(found.values()):
            empty.append(_no_row(spec, [len(stream.tokens) for stream in streams.values()], row_length))
            continue
        total = sum(stratum.tokens for stratum in spec.strata if found[stratum.name])
        sources[spec.name] = tuple(
            StratumEntry(
                stratum=stratum.name,
                rows=found[stratum.name],
                share=stratum.tokens / total if found[stratum.name] else 0.0,
            )
            for stratum in spec.strata
        )
        notes += _short_notes(spec.name, found, row_length, wanted)
    if empty:
        raise Refused(empty)
    first = line.pieces[0]
    return RowsRecord(
        row_length=row_length,
        rows_per_stratum=wanted,
        recipe={
            spec.name: first.shares[spec.name] / first.denominator
            for spec in used
            if spec.name in first.shares
        },
        sources=sources,
        notes=tuple(notes),
    )


def _no_row(spec: SourceSpec, tokens: list[int], row_length: int) -> str:
    held = f"{sum(tokens):,} tokens" + (f", at most {max(tokens):,} of a stratum" if len(tokens) > 1 else "")
    return (
        f"source {spec.name}: its held-out text ({held}) fills no row of {row_length:,} tokens, which needs "
        f"{row_length + 1:,}; use shorter rows, or make a data line whose recipe has more text or a larger "
        f"`heldout` fraction for this source (now {spec.heldout})"
    )


def _short_notes(name: str, found: dict[str, int], row_length: int, wanted: int) -> list[str]:
    notes = []
    for stratum, rows in found.items():
        if rows == 0:
            notes.append(
                f"source {name}, stratum {stratum}: held-out text fills no row of {row_length} tokens; "
                "the source's other strata carry its weight, by their shares"
            )
        elif rows < wanted:
            notes.append(f"source {name}, stratum {stratum}: {rows} of {wanted} rows")
    return notes


def _cut(record: RowsRecord, read: ReadStream) -> ValidationRows:
    """Cut the rows that a record names and digest them together with their weights."""
    digest = hashlib.sha256(canonical_json(record.pinned()))
    sources: dict[str, list[StratumRows]] = {}
    for name, strata in record.sources.items():
        sources[name] = [
            StratumRows(
                name=entry.stratum,
                share=entry.share,
                ids=pack_rows(read(name, entry.stratum), record.row_length, entry.rows),
            )
            for entry in strata
            if entry.rows
        ]
        _update(digest, sources[name])
    return ValidationRows(
        row_length=record.row_length, sources=sources, recipe=record.recipe, sha256=digest.hexdigest()
    )


def _update(digest: Any, strata: Sequence[StratumRows]) -> None:
    for stratum in strata:
        digest.update(stratum.ids.astype("<i8").tobytes())
