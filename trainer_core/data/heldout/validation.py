"""Validation of a data line: its held-out text collected, cut into rows of every length, and read again.

`make_heldout` collects the streams (streams.py) and cuts rows again whose record is lost; `cut_rows` pins the
rows of one length (rows.py); `extend_heldout` does both for new sources; `load_rows` is what training
reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainer_core.data.heldout.rows import cut_again, cut_source, pin_rows, read_rows, rows_path
from trainer_core.data.heldout.streams import Progress, make_streams, open_stream, read_heldout
from trainer_core.data.plan.consumer import read_consumer
from trainer_core.data.rows.source import ValidationRows
from trainer_core.data.sources import DataLine, load_data_line
from trainer_core.errors import Refused
from trainer_core.line.config import load_run
from trainer_core.line.files import sha256_json
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import DataPaths, LinePaths

TOKENS_PER_STRATUM = 1 << 20
"""Held-out tokens kept per stratum: 32 rows of 32,768."""


def make_heldout(
    work: Path,
    *,
    tokens_per_stratum: int = TOKENS_PER_STRATUM,
    progress: Progress = lambda message: None,
) -> dict[str, Any]:
    """Collect the held-out token streams, once; the same call again changes nothing that is whole.

    Called again, it goes on where it was interrupted, makes damaged streams anew, and cuts the rows of the
    training line's lengths that are missing. All come out as they were.
    """
    from trainer_core.data.tokens.open_files import OpenFiles  # readers of rows need no tokenizer

    paths, line = DataPaths(Path(work)), load_data_line(Path(work))
    with FileLock.acquire_waiting(paths.lock, role="val"):
        files = OpenFiles(paths.root, line)
        record = make_streams(paths, line, files, tokens_per_stratum, progress=progress)
        for length, number in _wanted_rows(paths):
            pin_missing_rows(paths.root, [length], number)
    return record.to_json()


def extend_heldout(
    paths: DataPaths, line: DataLine, *, progress: Progress = lambda message: None
) -> dict[str, Any]:
    """Collect the streams of sources that have none, and cut their rows of every pinned length.

    `line` is the grown data line, whose data.json may still be the old one. The caller holds its lock.
    Nothing of the other sources changes. Raises Refused when a source fills no row of a length.
    """
    from trainer_core.data.tokens.open_files import OpenFiles

    known = {spec.name for spec in load_data_line(paths.root).sources}
    new = {spec.name for spec in line.sources if spec.name not in known}
    files = OpenFiles(paths.root, line)
    record = make_streams(paths, line, files, TOKENS_PER_STRATUM, new=new, progress=progress)
    for length in pinned_lengths(paths):
        pin_rows(paths, line, length, read_rows(paths, length).rows_per_stratum, again=new)
    return record.to_json()


def cut_rows(work: Path, row_length: int, rows_per_stratum: int) -> dict[str, Any]:
    """Pin the validation rows of a length and return their record; the same call again changes nothing."""
    paths, line = DataPaths(Path(work)), load_data_line(Path(work))
    with FileLock.acquire_waiting(paths.lock, role="val"):
        return pin_rows(paths, line, row_length, rows_per_stratum).to_json()


def pin_missing_rows(work: Path, row_lengths: Sequence[int], rows_per_stratum: int) -> None:
    """Pin the rows of lengths, and of sources, that have none; what is pinned stays, whatever its number.

    Waits for no preparer: rows are a function of what is pinned, and appear by one rename.
    """
    paths, line = DataPaths(Path(work)), load_data_line(Path(work))
    for length in row_lengths:
        pin_rows(paths, line, length, _pinned_number(paths, length) or rows_per_stratum)


def load_rows(work: Path, row_length: int, cycle: int = 0) -> ValidationRows:
    """The pinned rows of a length of every source that the recipe had up to a cycle.

    They are weighted by the piece in force at the cycle, so sources without a share in it have no weight.
    Raises Refused when the held-out streams are not those the rows came from.
    """
    paths = DataPaths(Path(work))
    record, line = read_rows(paths, row_length), load_data_line(paths.root)
    streams = read_heldout(paths, line)
    begun = {name for piece in line.pieces if piece.from_cycle <= cycle for name in piece.shares}
    sources, digests = {}, {}
    for name in (spec.name for spec in line.sources if spec.name in begun):
        entry = record.entry(name, paths)
        read = partial(open_stream, paths, streams, name)
        sources[name], digests[name] = cut_source(record, name, entry.strata, read)
        if digests[name] != entry.sha256:
            raise Refused(
                f"{rows_path(paths, row_length)}: the rows of source {name} are {digests[name]}, "
                f"{entry.sha256} is pinned; {cut_again(paths)}"
            )
    piece = line.piece_at(cycle)
    return ValidationRows(
        row_length=row_length,
        sources=sources,
        recipe={name: share / piece.denominator for name, share in piece.shares.items()},
        sha256=sha256_json(digests),
    )


def rows_digests(work: Path) -> dict[str, str]:
    """Digest of the pinned rows of the recipe's first sources, by row length: new sources never change it.

    Raises Refused when rows of the training line are lost.
    """
    paths = DataPaths(Path(work))
    first = load_data_line(paths.root).pieces[0].shares
    lengths = {*pinned_lengths(paths), *(length for length, _ in _wanted_rows(paths))}
    records = {length: read_rows(paths, length) for length in sorted(lengths)}
    return {
        str(length): sha256_json({name: record.entry(name, paths).sha256 for name in first})
        for length, record in records.items()
    }


def pinned_lengths(paths: DataPaths) -> list[int]:
    """Row lengths that have a record of rows."""
    names = [path.stem.removeprefix("rows-") for path in paths.heldout.glob("rows-*.json")]
    return sorted(int(name) for name in names if name.isdecimal())


def _pinned_number(paths: DataPaths, row_length: int) -> int | None:
    return read_rows(paths, row_length).rows_per_stratum if rows_path(paths, row_length).exists() else None


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
