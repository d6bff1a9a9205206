"""Held-out token streams of a data line, one per stratum: made once, and made again when they are damaged.

`make_streams` walks each stratum's files in the order in which cycles open them and keeps the held-out
documents up to a bounded number of tokens; heldout.json records every stream's hash and is written last.
Readers compare that hash before they use a stream. Held-out text never enters a cycle (holdout.py decides
before anything is encoded).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.documents import Document
from trainer_core.data.holdout import is_held_out
from trainer_core.data.records import read_record
from trainer_core.data.shards import Shard, hash_shard, read_shard, write_shard
from trainer_core.data.sources import DataLine, SourceSpec
from trainer_core.data.streams import file_order
from trainer_core.data.text import iter_documents
from trainer_core.errors import Refused
from trainer_core.line.files import publish, write_json
from trainer_core.line.paths import DataPaths

if TYPE_CHECKING:  # readers of rows need no tokenizer
    from trainer_core.data.open_files import OpenFiles

FORMAT = "heldout/1"
_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class StreamRecord:
    """One stratum's stream."""

    documents: int
    """Documents in it."""
    tokens: int
    """Their tokens, ends of documents included."""
    files: int
    """Source files that were read for it."""
    blake2b: str
    """Hash of the stream's file."""


@dataclass(frozen=True, kw_only=True)
class HeldoutRecord:
    """All of heldout.json."""

    data_digest: str
    """Digest of the data line when the text was collected."""
    tokens_per_stratum: int
    """Tokens after which a stratum's collection ended."""
    sources: dict[str, dict[str, StreamRecord]]
    """Streams by source and stratum."""

    def to_json(self) -> dict[str, Any]:
        """The content of heldout.json."""
        return {"format": FORMAT, **asdict(self)}


def record_path(paths: DataPaths) -> Path:
    """The record of all streams."""
    return paths.heldout / "heldout.json"


def stream_path(paths: DataPaths, source: str, stratum: str) -> Path:
    """Held-out stream of a stratum; a stratum may be a file path, so its name is quoted."""
    return paths.heldout / source / f"{quote(stratum, safe='')}.safetensors"


def read_heldout(paths: DataPaths, line: DataLine) -> HeldoutRecord:
    """The record. Raises Refused when no held-out text is collected, or another line's."""
    path, command = record_path(paths), f"`nstrain data val --work {paths.root}`"
    if not path.exists():
        raise Refused(f"{paths.root}: no held-out text is collected; run {command} first")
    again = f"delete it and run {command}: it collects the same text again"
    record = read_record(path, FORMAT, _from_json, way_out=again)
    if record.data_digest != line.digest():
        raise Refused(
            f"{path}: the text was collected when the data line's digest was {record.data_digest}, "
            f"{paths.data} now has {line.digest()}; put back the {paths.data.name} that it was collected with"
        )
    names = {spec.name: {stratum.name for stratum in spec.strata} for spec in line.sources}
    if {name: set(strata) for name, strata in record.sources.items()} != names:
        raise Refused(f"{path}: its sources and strata are not those of the data line; {again}")
    return record


def make_streams(
    paths: DataPaths, line: DataLine, files: OpenFiles, tokens_per_stratum: int
) -> HeldoutRecord:
    """Collect all streams, or those that are missing or damaged. The caller holds the line's lock."""
    if record_path(paths).exists():
        record = read_heldout(paths, line)
        for source, stratum in _damaged(paths, record):
            _make_again(paths, line, files, record, source, stratum)
        return record
    record = HeldoutRecord(
        data_digest=line.digest(),
        tokens_per_stratum=tokens_per_stratum,
        sources={
            spec.name: {
                stratum.name: _make_stream(paths, line, spec, stratum.name, files, tokens_per_stratum)
                for stratum in spec.strata
            }
            for spec in line.sources
        },
    )
    write_json(record_path(paths), record.to_json())
    return record


def open_stream(paths: DataPaths, record: HeldoutRecord, source: str, stratum: str) -> Shard:
    """A stream, compared with its hash."""
    path = stream_path(paths, source, stratum)
    way_out = f"run `nstrain data val --work {paths.root}`: it collects the same text again"
    if not path.exists():
        raise Refused(f"{path}: this held-out stream does not exist; {way_out}")
    if hash_shard(path) != record.sources[source][stratum].blake2b:
        raise Refused(f"{path}: this held-out stream is damaged; {way_out}")
    return read_shard(path, way_out=way_out)


def _damaged(paths: DataPaths, record: HeldoutRecord) -> list[tuple[str, str]]:
    """Streams that are missing or not the recorded ones."""
    found = []
    for source, strata in record.sources.items():
        for stratum, stream in strata.items():
            path = stream_path(paths, source, stratum)
            if not path.exists() or hash_shard(path) != stream.blake2b:
                found.append((source, stratum))
    return found


def _make_again(
    paths: DataPaths, line: DataLine, files: OpenFiles, record: HeldoutRecord, source: str, stratum: str
) -> None:
    expected = record.sources[source][stratum]
    made = _make_stream(paths, line, line.source(source), stratum, files, record.tokens_per_stratum)
    if made != expected:
        raise Refused(
            f"{stream_path(paths, source, stratum)}: made again, this held-out stream is {made.blake2b}, "
            f"{record_path(paths)} says {expected.blake2b}; restore {paths.heldout} from a backup"
        )


def _make_stream(
    paths: DataPaths, line: DataLine, spec: SourceSpec, stratum: str, files: OpenFiles, tokens: int
) -> StreamRecord:
    """Write one stratum's held-out stream; its record."""
    encoder = files.encoder(spec.name)
    documents: list[NDArray[Any]] = []
    held, num_files = 0, 0
    for path in file_order(line, spec.name, stratum):
        if held >= tokens:
            break
        num_files += 1
        for batch in _heldout_batches(spec, path, files):
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
    return StreamRecord(documents=len(documents), tokens=held, files=num_files, blake2b=digest)


def _heldout_batches(spec: SourceSpec, path: str, files: OpenFiles) -> Iterator[list[Document]]:
    origin = files.sources.fetch(spec.name, path)
    batch: list[Document] = []
    for document in iter_documents(origin, spec.text, markers=spec.markers):
        if is_held_out(document, identity=spec.identity, fraction=spec.heldout):
            batch.append(document)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _from_json(value: Mapping[str, Any]) -> HeldoutRecord:
    return HeldoutRecord(
        data_digest=value["data_digest"],
        tokens_per_stratum=value["tokens_per_stratum"],
        sources={
            source: {stratum: StreamRecord(**entry) for stratum, entry in strata.items()}
            for source, strata in value["sources"].items()
        },
    )
