"""Held-out text of a data line: token streams per stratum, and the validation rows cut from them.

`make_heldout` walks each stratum's files in the order in which cycles open them and keeps the held-out
documents up to a bounded number of tokens. `cut_rows` pins rows of one length by their digest. Rows are
packed like training rows: consecutive, stride L; documents of at least half a row come first, so that long
rows see long documents. Held-out text never enters a cycle (holdout.py decides before anything is encoded).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.folder import verify_file
from trainer_core.data.holdout import is_held_out
from trainer_core.data.row_source import Ids, StratumRows, ValidationRows
from trainer_core.data.shards import Shard, read_shard, write_shard
from trainer_core.data.sources import DataLine, SourceSpec, load_data_line
from trainer_core.data.streams import file_order
from trainer_core.data.text import iter_documents
from trainer_core.errors import Refused
from trainer_core.line.files import canonical_json, publish, read_json, write_json
from trainer_core.line.lock import FileLock
from trainer_core.line.paths import DataPaths

if TYPE_CHECKING:
    from trainer_core.data.encode import Encoder

STREAMS_FORMAT = "heldout/1"
ROWS_FORMAT = "heldout-rows/1"
TOKENS_PER_STRATUM = 1 << 20
"""Held-out tokens kept per stratum: 32 rows of 32,768."""
_BATCH = 64


def make_heldout(work: Path, *, tokens_per_stratum: int = TOKENS_PER_STRATUM) -> dict[str, Any]:
    """Collect and store the held-out token streams; done once, the same call again changes nothing."""
    from trainer_core.data.open_files import OpenFiles  # readers of rows need no tokenizer

    paths, line = DataPaths(Path(work)), load_data_line(Path(work))
    record_path = paths.heldout / "heldout.json"
    with FileLock.acquire_waiting(paths.lock, role="val"):
        if record_path.exists():
            return read_json(record_path)
        files = OpenFiles(paths.root, line)
        record: dict[str, Any] = {
            "format": STREAMS_FORMAT,
            "data_digest": line.digest(),
            "tokens_per_stratum": tokens_per_stratum,
            "sources": {
                spec.name: {
                    stratum.name: _make_stream(
                        paths, line, spec, stratum.name, files.encoder(spec.name), tokens_per_stratum
                    )
                    for stratum in spec.strata
                }
                for spec in line.sources
            },
        }
        write_json(record_path, record)
        return record


def cut_rows(work: Path, row_length: int, rows_per_stratum: int) -> dict[str, Any]:
    """Pin the validation rows of a length and return their record; the same call again changes nothing."""
    paths, line = DataPaths(Path(work)), load_data_line(Path(work))
    path = rows_path(paths, row_length)
    with FileLock.acquire_waiting(paths.lock, role="val"):
        if path.exists():
            record = read_json(path)
            if record["rows_per_stratum"] != rows_per_stratum:
                raise Refused(
                    f"{path}: {record['rows_per_stratum']} rows per stratum are pinned, {rows_per_stratum} "
                    "were asked for; validation rows never change, keep the number"
                )
            return record
        record = _rows_record(paths, line, row_length, rows_per_stratum)
        record["sha256"] = _cut(paths, record).sha256
        write_json(path, record)
        return record


def load_rows(work: Path, row_length: int) -> ValidationRows:
    """The pinned rows of a length. Raises Refused when the held-out streams are not those they came from."""
    paths = DataPaths(Path(work))
    path = rows_path(paths, row_length)
    if not path.exists():
        raise Refused(
            f"{path}: no validation rows of {row_length} tokens; `nstrain new` and `branch` cut them"
        )
    record = read_json(path)
    rows = _cut(paths, record)
    if rows.sha256 != record["sha256"]:
        raise Refused(
            f"{paths.heldout}: the rows of length {row_length} are {rows.sha256}, {record['sha256']} is "
            "pinned; restore the held-out streams, validation losses would not be comparable"
        )
    return rows


def rows_digests(work: Path) -> dict[str, str]:
    """sha256 of the pinned rows by row length."""
    found = {}
    for path in DataPaths(Path(work)).heldout.glob("rows-*.json"):
        record = read_json(path)
        found[str(record["row_length"])] = str(record["sha256"])
    return dict(sorted(found.items()))


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


def _make_stream(
    paths: DataPaths, line: DataLine, spec: SourceSpec, stratum: str, encoder: Encoder, tokens: int
) -> dict[str, Any]:
    """Write one stratum's held-out stream; its record."""
    documents: list[NDArray[Any]] = []
    held, num_files = 0, 0
    for path in file_order(line, spec.name, stratum):
        if held >= tokens:
            break
        num_files += 1
        for batch in _heldout_batches(spec, path):
            for ids in encoder.encode(batch, where=path):
                if held < tokens:
                    documents.append(ids)
                    held += len(ids)
            if held >= tokens:
                break
    target = stream_path(paths, spec.name, stratum)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    digest = write_shard(
        part,
        documents,
        np.cumsum([len(ids) for ids in documents], dtype=np.int64).astype(np.uint64),
        num_tokens=held,
        token_type=line.token_dtype,
    )
    publish(part, target)
    return {"documents": len(documents), "tokens": held, "files": num_files, "blake2b": digest}


def stream_path(paths: DataPaths, source: str, stratum: str) -> Path:
    """Held-out stream of a stratum; a stratum may be a file path, so its name is quoted."""
    return paths.heldout / source / f"{quote(stratum, safe='')}.safetensors"


def _heldout_batches(spec: SourceSpec, path: str) -> Iterator[list[str]]:
    file = next(file for file in spec.files if file.path == path)
    origin = verify_file(Path(spec.folder), file)
    batch: list[str] = []
    for text in iter_documents(origin, spec.text):
        if is_held_out(text, identity=spec.identity, fraction=spec.heldout):
            batch.append(text)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _rows_record(paths: DataPaths, line: DataLine, row_length: int, wanted: int) -> dict[str, Any]:
    """Which stratum gives how many rows with which weight. Raises Refused naming sources without any row."""
    if not (paths.heldout / "heldout.json").exists():
        raise Refused(
            f"{paths.root}: no held-out text is collected; run `nstrain data val --work {paths.root}` first"
        )
    used = [
        name for name in (spec.name for spec in line.sources) if any(p.shares.get(name) for p in line.pieces)
    ]
    sources: dict[str, list[dict[str, Any]]] = {}
    notes: list[str] = []
    empty: list[str] = []
    for name in used:
        spec = line.source(name)
        found = {
            stratum.name: len(pack_rows(_stream(paths, name, stratum.name), row_length, wanted))
            for stratum in spec.strata
        }
        total = sum(stratum.tokens for stratum in spec.strata if found[stratum.name])
        if not total:
            empty.append(
                f"source {name}: its held-out text fills no row of {row_length} tokens; raise its `heldout` "
                f"fraction ({spec.heldout}) in the recipe, or add text"
            )
            continue
        sources[name] = [
            {
                "stratum": stratum.name,
                "rows": found[stratum.name],
                "share": stratum.tokens / total if found[stratum.name] else 0.0,
            }
            for stratum in spec.strata
        ]
        notes += _short_notes(name, found, row_length, wanted)
    if empty:
        raise Refused(empty)
    shares = line.pieces[0].shares
    return {
        "format": ROWS_FORMAT,
        "row_length": row_length,
        "rows_per_stratum": wanted,
        "recipe": {name: shares[name] / line.pieces[0].denominator for name in used if shares.get(name)},
        "sources": sources,
        "notes": notes,
    }


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


def _cut(paths: DataPaths, record: dict[str, Any]) -> ValidationRows:
    """Cut the rows that a record names and digest them together with their weights."""
    length = int(record["row_length"])
    pinned = {key: record[key] for key in ("format", "row_length", "rows_per_stratum", "recipe", "sources")}
    digest = hashlib.sha256(canonical_json(pinned))
    sources: dict[str, list[StratumRows]] = {}
    for name, strata in record["sources"].items():
        sources[name] = [
            StratumRows(
                name=entry["stratum"],
                share=entry["share"],
                ids=pack_rows(_stream(paths, name, entry["stratum"]), length, entry["rows"]),
            )
            for entry in strata
            if entry["rows"]
        ]
        _update(digest, sources[name])
    return ValidationRows(
        row_length=length, sources=sources, recipe=record["recipe"], sha256=digest.hexdigest()
    )


def _update(digest: Any, strata: Sequence[StratumRows]) -> None:
    for stratum in strata:
        digest.update(stratum.ids.astype("<i8").tobytes())


def _stream(paths: DataPaths, source: str, stratum: str) -> Shard:
    return read_shard(stream_path(paths, source, stratum))
