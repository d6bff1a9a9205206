"""Tokenized files under `open/`: each pinned file once, kept while a cycle still needs documents of it.

A tokenized file holds its training documents (held-out ones are decided first and left out) in an order
permuted by the line's seed, and in its metadata what was left out. It appears by rename, so it is whole or
absent; a file made from other bytes, another tokenizer copy, tokenizers version or seed counts as absent. Its
bytes are compared with the hash that it carries when it is first opened. Its sampled text hashes are on disk
before it is.

Several processes may tokenize files of one line at once, each another file. `on_disk` removes what killed
processes left, so it is only called while none of them works: by the holder of the line's lock.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer_core.data.files.listing import TOKENS_SUFFIX
from trainer_core.data.files.source_files import SourceFiles
from trainer_core.data.plan.order import permutation
from trainer_core.data.plan.state import DocEnds
from trainer_core.data.sources import DataLine, SourceFile
from trainer_core.data.text.documents import Damaged
from trainer_core.data.tokens.encode import Encoder, check_library, read_tokenizer
from trainer_core.data.tokens.fingerprints import Fingerprints, hashes_path
from trainer_core.data.tokens.reading import Reading
from trainer_core.data.tokens.shards import Shard, ShardWriter, check_seal, read_shard
from trainer_core.data.tokens.spool import Spool
from trainer_core.errors import DiskFull, Refused, disk_full
from trainer_core.line.files import publish
from trainer_core.line.paths import DataPaths

FORMAT = "open-file/3"
_SPOOL = ".spool"
_PART = ".part"
_TEMPORARY = ".tmp"
_AGAIN = "delete it, it is made again from its source file"
_MAPPED = 64
"""Files that are mapped at once: a cycle may be made of more than a process may open."""


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
    characters: int
    """Characters of the documents to train on."""
    duplicates: int
    """Documents to train on whose text stands earlier in the file."""


class OpenFiles:
    """The tokenized files of a data line."""

    def __init__(self, root: Path, line: DataLine, sources: SourceFiles | None = None) -> None:
        """`sources` are the line's files where downloading them needs more than the defaults."""
        self.sources = sources if sources is not None else SourceFiles(DataPaths(root), line)
        self._paths = DataPaths(root)
        self._folder = self._paths.open
        self._line = line
        self._mapped: dict[tuple[str, str], Shard] = {}
        self._facts: dict[tuple[str, str], OpenFacts] = {}
        self._ends: dict[tuple[str, str], DocEnds] = {}
        self._encoders: dict[str, Encoder] = {}
        self._files = {(spec.name, file.path): (spec, file) for spec in line.sources for file in spec.files}

    def path(self, source: str, path: str) -> Path:
        """Where a file's tokens lie."""
        return self._folder / source / (path + TOKENS_SUFFIX)

    def pinned(self, source: str, path: str) -> SourceFile:
        """The pinned record of a file."""
        return self._files[source, path][1]

    def shard(self, source: str, path: str) -> Shard | None:
        """The tokens of a file, or None when it is not tokenized. Raises Refused when they are damaged."""
        key = (source, path)
        shard = self._mapped.pop(key, None) or self._opened(*key)
        if shard is not None:
            while len(self._mapped) >= _MAPPED:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[key] = shard
        return shard

    def counts(self, source: str, path: str) -> DocEnds | None:
        """Document ends of a tokenized file; None when it is not tokenized (the planner's question)."""
        key = (source, path)
        return self._ends[key] if key in self._ends or self.shard(*key) is not None else None

    def facts(self, source: str, path: str) -> OpenFacts:
        """What tokenizing a file found; the file must be tokenized."""
        assert self.counts(source, path) is not None, path
        return self._facts[source, path]

    def tokenize(self, source: str, path: str) -> OpenFacts:
        """Tokenize a file unless that is done; nothing half-made stays behind, whatever is raised."""
        if self.counts(source, path) is None:
            target = self.path(source, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._tokenize_readable(source, path)
            except OSError as error:
                if disk_full(error):
                    raise DiskFull(f"{target}: no space left; free space and start again") from error
                raise
        return self.facts(source, path)

    def forget(self, source: str, path: str) -> None:
        """Delete a file's tokens; does nothing when they are gone."""
        for known in (self._mapped, self._facts, self._ends):
            known.pop((source, path), None)
        self.path(source, path).unlink(missing_ok=True)

    def on_disk(self) -> list[tuple[str, str]]:
        """(source, path) of every tokenized file; leftovers of a killed process are removed on the way."""
        for temporary in self._paths.hashes.rglob(f".*{_TEMPORARY}"):
            temporary.unlink(missing_ok=True)
        found = []
        for spec in self._line.sources:
            folder = self._folder / spec.name
            for entry in sorted(folder.rglob("*")):
                if not entry.is_file():
                    continue  # a folder of a source may have any name
                if entry.name.endswith((_SPOOL, _PART)):
                    entry.unlink(missing_ok=True)
                elif entry.name.endswith(TOKENS_SUFFIX):
                    found.append(
                        (spec.name, entry.relative_to(folder).as_posix().removesuffix(TOKENS_SUFFIX))
                    )
        return found

    def _opened(self, source: str, path: str) -> Shard | None:
        """Map a file; at its first time its bytes are compared, and its counts are kept."""
        target = self.path(source, path)
        if not target.exists():
            return None
        shard = read_shard(target, way_out=_AGAIN)
        if any(shard.metadata.get(name) != value for name, value in self._origin(source, path).items()):
            return None
        if (source, path) not in self._ends:
            check_seal(target, way_out=_AGAIN)
            self._ends[source, path] = shard.doc_ends.astype(np.int64)
            self._facts[source, path] = OpenFacts(
                documents=len(shard.doc_ends),
                tokens=len(shard.tokens),
                heldout_docs=int(shard.metadata["heldout_docs"]),
                skipped=json.loads(shard.metadata["skipped"]),
                characters=int(shard.metadata["characters"]),
                duplicates=int(shard.metadata["duplicates"]),
            )
        return shard

    def _tokenize_readable(self, source: str, path: str) -> None:
        """Tokenize a file; a download that its format shows to be damaged is downloaded once more."""
        try:
            self._tokenize(source, path)
        except Damaged as error:
            if not self.sources.is_hub(source):
                raise
            try:
                self._tokenize(source, path, again=True)
            except Damaged as again:
                raise Refused(
                    f"{again}; downloaded twice, both times with the pinned digest "
                    f"{self.pinned(source, path).digest}: it was uploaded like this; "
                    "make a new data line whose glob leaves it out"
                ) from error

    def _tokenize(self, source: str, path: str, *, again: bool = False) -> None:
        target = self.path(source, path)
        stem = f"{target.name}.{os.getpid()}.{secrets.token_hex(4)}"
        spool, part = target.with_name(stem + _SPOOL), target.with_name(stem + _PART)
        try:
            with self.sources.reading(source, path, again=again) as origin:
                fingerprints = self._write(source, path, origin, spool, part)
            fingerprints.keep_sample(hashes_path(self._paths, source, path))
            publish(part, target)
        finally:
            spool.unlink(missing_ok=True)
            part.unlink(missing_ok=True)

    def _write(self, source: str, path: str, origin: Path, spool_path: Path, part: Path) -> Fingerprints:
        """Read, encode and shuffle a file into `part`; the hashes of its texts."""
        encoder = self.encoder(source)
        reading = Reading(self._line.source(source), origin)
        with Spool(spool_path, np.dtype(self._line.token_dtype).newbyteorder("<")) as spool:
            for batch in reading.batches():
                encoded = encoder.encode_flat(batch, first_document=len(spool), where=str(origin))
                spool.append(encoded.ids, encoded.lengths)
            order = permutation(self._line.seed, "documents", source, path, n=len(spool))
            lengths = spool.lengths()
            writer = ShardWriter(
                part,
                num_tokens=int(lengths.sum()),
                token_type=self._line.token_dtype,
                doc_ends=np.cumsum(lengths[order]).astype(np.uint64),
                metadata={**self._origin(source, path), **reading.metadata()},
                sealed=True,
            )
            for tokens in spool.gather(order):
                writer.append(tokens)
            writer.finish()
        return reading.fingerprints

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
