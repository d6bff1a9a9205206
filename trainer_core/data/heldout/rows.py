"""The rows of one length that validation reads: packed from held-out streams, pinned by a digest per source.

Rows are packed like training rows: consecutive, stride L; documents of at least half a row come first, so
that long rows see long documents. They are a function of the source's streams, their length and their number:
cut again they are the same, and new sources change nothing of the others. Never collects text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.heldout.streams import open_stream, read_heldout
from trainer_core.data.records import read_record, refuse_other
from trainer_core.data.rows.source import Ids, StratumRows
from trainer_core.data.sources import DataLine, SourceSpec
from trainer_core.data.tokens.shards import Shard
from trainer_core.errors import Refused
from trainer_core.line.files import canonical_json, write_json
from trainer_core.line.paths import DataPaths

FORMAT = "heldout-rows/2"

ReadStream = Callable[[str], Shard]
"""The held-out stream of a stratum."""


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
class SourceEntry:
    """Rows of one source."""

    strata: tuple[StratumEntry, ...]
    """Its strata."""
    sha256: str
    """Digest of the rows and their weights."""


@dataclass(frozen=True, kw_only=True)
class RowsRecord:
    """The record of the rows of one length."""

    row_length: int
    """Targets per row."""
    rows_per_stratum: int
    """Rows wanted of each stratum."""
    sources: dict[str, SourceEntry]
    """Rows by source."""
    notes: tuple[str, ...]
    """Strata that gave fewer rows than wanted."""

    def to_json(self) -> dict[str, Any]:
        """The content of heldout/rows-<L>.json."""
        return {"format": FORMAT, **asdict(self)}

    def entry(self, source: str, paths: DataPaths) -> SourceEntry:
        """The rows of a source. Raises Refused when they are not cut."""
        if source not in self.sources:
            raise Refused(
                f"{rows_path(paths, self.row_length)}: source {source} has no rows of {self.row_length} "
                f"tokens; run `nstrain data val --work {paths.root}`"
            )
        return self.sources[source]


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


def cut_again(paths: DataPaths) -> str:
    return f"delete it and run `nstrain data val --work {paths.root}`: the same rows are cut again"


def read_rows(paths: DataPaths, row_length: int) -> RowsRecord:
    path = rows_path(paths, row_length)
    if not path.exists():
        raise Refused(
            f"{path}: no validation rows of {row_length} tokens; `nstrain new` cuts them, and `nstrain data "
            f"val --work {paths.root}` cuts those of a training line again"
        )
    record = read_record(path, FORMAT, _from_json, way_out=cut_again(paths))
    if record.row_length != row_length:
        raise Refused(f"{path}: holds rows of {record.row_length} tokens; {cut_again(paths)}")
    return record


def _from_json(value: Mapping[str, Any]) -> RowsRecord:
    record = RowsRecord(
        row_length=value["row_length"],
        rows_per_stratum=value["rows_per_stratum"],
        sources={
            name: SourceEntry(
                strata=tuple(StratumEntry(**stratum) for stratum in entry["strata"]), sha256=entry["sha256"]
            )
            for name, entry in value["sources"].items()
        },
        notes=tuple(value["notes"]),
    )
    refuse_other(value, record.to_json())
    return record


def pin_rows(
    paths: DataPaths, line: DataLine, row_length: int, wanted: int, *, again: Collection[str] = ()
) -> RowsRecord:
    """Cut and pin the rows of every source that has none, or is to be cut again; the record.

    Raises Refused naming the sources without any row, and when another number of rows is pinned.
    """
    path = rows_path(paths, row_length)
    record = RowsRecord(row_length=row_length, rows_per_stratum=wanted, sources={}, notes=())
    if path.exists():
        record = read_rows(paths, row_length)
        if record.rows_per_stratum != wanted:
            raise Refused(
                f"{path}: {record.rows_per_stratum} rows per stratum are pinned, {wanted} were asked for; "
                "validation rows never change, keep the number"
            )
    kept = {name: entry for name, entry in record.sources.items() if name not in again}
    missing = [spec for spec in line.sources if spec.name not in kept]
    if not missing:
        return record
    streams = read_heldout(paths, line)
    empty: list[str] = []
    for spec in missing:
        read = partial(open_stream, paths, streams, spec.name)
        strata = _strata(spec, read, row_length, wanted)
        if strata:
            _, digest = cut_source(record, spec.name, strata, read)
            kept[spec.name] = SourceEntry(strata=strata, sha256=digest)
        else:
            held = [record.tokens for record in streams.sources[spec.name].values()]
            empty.append(_no_row(spec, held, row_length))
    if empty:
        raise Refused(empty)
    sources = {spec.name: kept[spec.name] for spec in line.sources}
    record = RowsRecord(
        row_length=row_length,
        rows_per_stratum=wanted,
        sources=sources,
        notes=_short(sources, row_length, wanted),
    )
    write_json(path, record.to_json())
    return record


def _strata(spec: SourceSpec, read: ReadStream, row_length: int, wanted: int) -> tuple[StratumEntry, ...]:
    """Which stratum gives how many rows with which weight; () when none gives any."""
    found = {s.name: len(pack_rows(read(s.name), row_length, wanted)) for s in spec.strata}
    total = sum(stratum.tokens for stratum in spec.strata if found[stratum.name])
    if not total:
        return ()
    return tuple(
        StratumEntry(
            stratum=stratum.name,
            rows=found[stratum.name],
            share=stratum.tokens / total if found[stratum.name] else 0.0,
        )
        for stratum in spec.strata
    )


def _no_row(spec: SourceSpec, tokens: list[int], row_length: int) -> str:
    held = f"{sum(tokens):,} tokens" + (f", at most {max(tokens):,} of a stratum" if len(tokens) > 1 else "")
    return (
        f"source {spec.name}: its held-out text ({held}) fills no row of {row_length:,} tokens, which needs "
        f"{row_length + 1:,}; use shorter rows, or make a data line whose recipe has more text or a larger "
        f"`heldout` fraction for this source (now {spec.heldout})"
    )


def _short(sources: Mapping[str, SourceEntry], row_length: int, wanted: int) -> tuple[str, ...]:
    notes = []
    for name, entry in sources.items():
        for stratum in entry.strata:
            if stratum.rows == 0:
                notes.append(
                    f"source {name}, stratum {stratum.stratum}: held-out text fills no row of {row_length} "
                    "tokens; the source's other strata carry its weight, by their shares"
                )
            elif stratum.rows < wanted:
                notes.append(f"source {name}, stratum {stratum.stratum}: {stratum.rows} of {wanted} rows")
    return tuple(notes)


def cut_source(
    record: RowsRecord, source: str, strata: tuple[StratumEntry, ...], read: ReadStream
) -> tuple[list[StratumRows], str]:
    """Cut the rows of a source that its entries name, and digest them together with their weights."""
    rows = [
        StratumRows(
            name=entry.stratum,
            share=entry.share,
            ids=pack_rows(read(entry.stratum), record.row_length, entry.rows),
        )
        for entry in strata
        if entry.rows
    ]
    pinned = {
        "row_length": record.row_length,
        "rows_per_stratum": record.rows_per_stratum,
        "source": source,
        "strata": [asdict(entry) for entry in strata],
    }
    digest = hashlib.sha256(canonical_json(pinned))
    for stratum in rows:
        digest.update(stratum.ids.astype("<i8").tobytes())
    return rows, digest.hexdigest()
