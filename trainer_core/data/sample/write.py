"""The sample's documents as files, in the formats in which real corpora come.

Same documents, same bytes: no times, no host names, no thread-dependent compression.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trainer_core.data.sample.catalog import SourcePlan
from trainer_core.data.sample.collect import Document

FILE_BYTES = 512 << 10
LICENCES = "licences"
_GROUP_ROWS = 32


def write_source(root: Path, plan: SourcePlan, strata: dict[str, list[Document]]) -> None:
    """Write one source's folder."""
    for stratum, documents in strata.items():
        if stratum == LICENCES:
            _write_texts(root / stratum, documents)
        elif plan.stratum_rule == "file":
            _write_file(root / f"{stratum}.{plan.format}", documents, plan.format)
        else:
            folder = root if plan.stratum_rule == "none" else root / stratum
            for number, part in enumerate(_parts(documents)):
                _write_file(folder / f"part-{number:05d}.{plan.format}", part, plan.format)


def _parts(documents: Sequence[Document]) -> Iterator[list[Document]]:
    """Documents in files of about FILE_BYTES of text."""
    part: list[Document] = []
    size = 0
    for document in documents:
        part.append(document)
        size += len(document[1].encode("utf-8"))
        if size >= FILE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _write_file(path: Path, documents: Sequence[Document], form: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "parquet":
        _write_parquet(path, documents)
        return
    rows = (json.dumps({"path": name, "text": text}, ensure_ascii=False) + "\n" for name, text in documents)
    data = "".join(rows).encode("utf-8")
    if form == "jsonl.gz":
        data = gzip.compress(data, compresslevel=6, mtime=0)
    elif form == "jsonl.zst":
        data = _zstd(data)
    path.write_bytes(data)


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def _write_parquet(path: Path, documents: Sequence[Document]) -> None:
    names, texts = zip(*documents, strict=True)
    sizes = [len(text.encode("utf-8")) for text in texts]
    table = pa.table({"path": names, "content": texts, "num_bytes": pa.array(sizes, pa.int64())})
    pq.write_table(table, path, compression="zstd", row_group_size=_GROUP_ROWS)


def _write_texts(folder: Path, documents: Sequence[Document]) -> None:
    """One .txt file per document."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (_, text) in enumerate(documents):
        (folder / f"{number:05d}.txt").write_bytes(text.encode("utf-8"))
