"""Tokenized files under `open/`: each pinned file once, kept while a cycle still needs documents of it.

A tokenized file holds its training documents (held-out ones are decided first and left out) in an order
permuted by the line's seed, and in its metadata what was left out. It appears by rename, so it is whole or
absent; a file made from other bytes, another tokenizer copy, tokenizers version or seed counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer_core.data.documents import Document, document_text
from trainer_core.data.encode import Encoder, check_library, read_tokenizer
from trainer_core.data.holdout import is_held_out
from trainer_core.data.order import permutation
from trainer_core.data.plan_state import DocEnds
from trainer_core.data.shards import Shard, ShardWriter, TokenArray, read_shard
from trainer_core.data.source_files import SourceFiles
from trainer_core.data.sources import DataLine, SourceFile
from trainer_core.data.text import ReadCounts, iter_documents
from trainer_core.errors import DiskFull, Refused, disk_full
from trainer_core.line.files import publish
from trainer_core.line.paths import DataPaths

FORMAT = "open-file/1"
_SUFFIX = ".safetensors"
_SPOOL = ".spool"
_PART = ".part"
_BATCH_DOCUMENTS = 256
_BATCH_CHARACTERS = 1 << 20
_GATHER_TOKENS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class OpenFacts:
    """What tokenizing a file found."""

    documents: int
    """Documents to train on."""
    tokens: int
    """Their tokens, an end-of-document id each included."""
    heldout_docs: int
    """Documents kept for validation."""
    skipped: dict[str, int]
    """Documents skipped or repaired while reading, by reason."""


class OpenFiles:
    """The tokenized files of a data line."""

    def __init__(self, root: Path, line: DataLine) -> None:
        self.sources = SourceFiles(DataPaths(root), line)
        self._folder = DataPaths(root).open
        self._line = line
        self._shards: dict[tuple[str, str], Shard] = {}
        self._ends: dict[tuple[str, str], DocEnds] = {}
        self._encoders: dict[str, Encoder] = {}
        self._files = {(spec.name, file.path): (spec, file) for spec in line.sources for file in spec.files}

    def path(self, source: str, path: str) -> Path:
        """Where a file's tokens lie."""
        return self._folder / source / (path + _SUFFIX)

    def pinned(self, source: str, path: str) -> SourceFile:
        """The pinned record of a file."""
        return self._files[source, path][1]

    def shard(self, source: str, path: str) -> Shard | None:
        """The tokens of a file, or None when it is not tokenized."""
        key = (source, path)
        if key not in self._shards:
            target = self.path(source, path)
            if not target.exists():
                return None
            shard = read_shard(target, way_out="delete it, it is made again from its source file")
            if any(shard.metadata.get(name) != value for name, value in self._origin(*key).items()):
                return None
            self._shards[key] = shard
            self._ends[key] = shard.doc_ends.astype(np.int64)
        return self._shards[key]

    def counts(self, source: str, path: str) -> DocEnds | None:
        """Document ends of a tokenized file; None when it is not tokenized (the planner's question)."""
        return None if self.shard(source, path) is None else self._ends[source, path]

    def facts(self, source: str, path: str) -> OpenFacts:
        """What tokenizing a file found; the file must be tokenized."""
        shard = self.shard(source, path)
        assert shard is not None, path
        return OpenFacts(
            documents=len(shard.doc_ends),
            tokens=len(shard.tokens),
            heldout_docs=int(shard.metadata["heldout_docs"]),
            skipped=json.loads(shard.metadata["skipped"]),
        )

    def tokenize(self, source: str, path: str) -> OpenFacts:
        """Tokenize a file unless that is done; nothing half-made stays behind, whatever is raised."""
        if self.shard(source, path) is None:
            target = self.path(source, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            spool, part = target.with_name(target.name + _SPOOL), target.with_name(target.name + _PART)
            try:
                self._tokenize(source, path, spool, part)
                publish(part, target)
            except OSError as error:
                if disk_full(error):
                    raise DiskFull(f"{target}: no space left; free space and start again") from error
                raise
            finally:
                spool.unlink(missing_ok=True)
                part.unlink(missing_ok=True)
        return self.facts(source, path)

    def forget(self, source: str, path: str) -> None:
        """Delete a file's tokens; does nothing when they are gone."""
        self._shards.pop((source, path), None)
        self._ends.pop((source, path), None)
        self.path(source, path).unlink(missing_ok=True)

    def on_disk(self) -> list[tuple[str, str]]:
        """(source, path) of every tokenized file; leftovers of a killed process are removed on the way."""
        found = []
        for spec in self._line.sources:
            folder = self._folder / spec.name
            for entry in sorted(folder.rglob("*")):
                if entry.name.endswith((_SPOOL, _PART)):
                    entry.unlink(missing_ok=True)
                elif entry.is_file() and entry.name.endswith(_SUFFIX):
                    found.append((spec.name, entry.relative_to(folder).as_posix().removesuffix(_SUFFIX)))
        return found

    def _tokenize(self, source: str, path: str, spool: Path, part: Path) -> None:
        spec, _ = self._files[source, path]
        counts = ReadCounts()
        dtype = np.dtype(self._line.token_dtype).newbyteorder("<")
        origin = self.sources.fetch(source, path)
        encoder = self.encoder(source)
        lengths: list[int] = []
        heldout = 0

        def kept() -> Iterator[Document]:
            nonlocal heldout
            for text in iter_documents(origin, spec.text, counts, spec.markers):
                if is_held_out(text, identity=spec.identity, fraction=spec.heldout):
                    heldout += 1
                else:
                    yield text

        with open(spool, "wb") as file:
            for batch in batches(kept()):
                for ids in encoder.encode(batch, first_document=len(lengths), where=str(origin)):
                    file.write(np.ascontiguousarray(ids, dtype=dtype).tobytes())
                    lengths.append(len(ids))
        order = permutation(self._line.seed, "documents", source, path, n=len(lengths))
        sizes = np.array(lengths, dtype=np.int64)
        writer = ShardWriter(
            part,
            num_tokens=int(sizes.sum()),
            token_type=self._line.token_dtype,
            doc_ends=np.cumsum(sizes[order]).astype(np.uint64),
            metadata={
                **self._origin(source, path),
                "heldout_docs": str(heldout),
                "skipped": json.dumps(counts.to_json(), sort_keys=True),
            },
        )
        if lengths:
            for tokens in _gather(np.memmap(spool, dtype=dtype, mode="r"), sizes, order):
                writer.append(tokens)
        writer.finish()

    def encoder(self, source: str) -> Encoder:
        """The encoder of a source. Raises Refused unless library and tokenizer copy are the pinned ones."""
        if source not in self._encoders:
            check_library(self._line.tokenizer)
            spec = self._line.source(source)
            encoder = Encoder(
                read_tokenizer(self._line.tokenizer), markers=spec.markers, eos_id=self._line.eos_id
            )
            if encoder.digest != spec.encode_sha256:
                raise Refused(
                    f"source {source}: the encode-only tokenizer copy is {encoder.digest}, the data line was "
                    f"made with {spec.encode_sha256}; use the nstrain version that made it"
                )
            self._encoders[source] = encoder
        return self._encoders[source]

    def _origin(self, source: str, path: str) -> dict[str, str]:
        """What the tokens of a file depend on."""
        spec, file = self._files[source, path]
        return {
            "format": FORMAT,
            **file.pinned(),
            "encode_sha256": spec.encode_sha256,
            "library_version": self._line.tokenizer.library_version,
            "heldout": f"{spec.heldout!r} {spec.identity}",
            "text": json.dumps(spec.text.to_json()),
            "seed": str(self._line.seed),
        }


def batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Group documents so that a batch is worth a call and never large."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document_text(document))
        if len(batch) == _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _gather(tokens: TokenArray, sizes: np.ndarray, order: np.ndarray) -> Iterator[TokenArray]:
    """Documents in permuted order, in slices of bounded size (or one document)."""
    starts = np.cumsum(sizes) - sizes
    chunk: list[TokenArray] = []
    held = 0
    for doc in order.tolist():
        chunk.append(tokens[starts[doc] : starts[doc] + sizes[doc]])
        held += int(sizes[doc])
        if held >= _GATHER_TOKENS:
            yield np.concatenate(chunk)
            chunk, held = [], 0
    if chunk:
        yield np.concatenate(chunk)
