"""Tokens per byte of a stratum, measured on one seeded file before anything is planned.

Reads a whole file, so that one without text or a cut one is found here, and encodes a sample spread over it.
Also measures what the library's default matching would have read out of the same text, and whether decoding
gives the text back. Never decides shares: `initialize` does, from these numbers.
Invariant: integers only, so the same files give the same estimates everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from trainer_core.data.files.listing import suffix_of
from trainer_core.data.making.calibration import StratumCalibration, files_digest
from trainer_core.data.sources import SourceFile, TextRule
from trainer_core.data.text.documents import Document, ReadCounts, document_text
from trainer_core.data.text.read import iter_documents, resolve_rule
from trainer_core.data.tokens.encode import Encoder
from trainer_core.data.tokens.holdout import Holdout

_SAMPLED_FIRST = 64 << 10
_SAMPLED_PART = 64
_BATCH = 64

Reading = Callable[[SourceFile], AbstractContextManager[Path]]
"""A pinned file as a path, for as long as the block lasts."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a source is measured under."""

    encoder: Encoder
    """Its encoder."""
    identity: str
    """Key of the held-out decision."""
    heldout: float
    """Held-out fraction."""
    seed: int
    """Seed of the line: it chooses the file."""


def calibrate_stratum(
    files: Sequence[SourceFile], reading: Reading, rule: TextRule, under: Conditions
) -> tuple[TextRule, StratumCalibration] | None:
    """Measure the first file, in seeded order, that has text to train on; None if none of them has.

    Also returns the text rule in force, which such a file says itself where `rule` is `auto`: .txt files
    come last then, since they go with every rule and others do not go with theirs.
    """
    column: TextRule | None = None
    ordered = seeded_files(files, under.seed)
    if rule.kind == "auto":
        ordered.sort(key=lambda file: suffix_of(file.path) == ".txt")
    for file in ordered:
        with reading(file) as path:
            resolved = resolve_rule(path, rule)
            if resolved is not None and resolved.kind == "whole":
                resolved = column or resolved
            else:
                column = column or resolved
            measured = None if resolved is None else _measure(path, file, files, resolved, under)
        if resolved is not None and measured is not None and measured.trained_bytes:
            return resolved, measured
    return None


def seeded_files(files: Sequence[SourceFile], seed: int) -> list[SourceFile]:
    """The files in an order that depends on seed and paths only."""
    return sorted(files, key=lambda file: hashlib.blake2b(f"{seed}/{file.path}".encode()).digest())


class _Sample:
    """The encoded part of a file: the first documents, then one 64th of the bytes that follow."""

    def __init__(self, encoder: Encoder, where: str) -> None:
        self.encoder, self.where = encoder, where
        self.documents = self.bytes = self.tokens = self.default_ids = self.exact = 0
        self.batch: list[Document] = []

    def offer(self, document: Document, size: int, seen_bytes: int) -> None:
        """Take the document if the sample is behind its part of the bytes seen."""
        if self.bytes >= _SAMPLED_FIRST and self.bytes * _SAMPLED_PART >= seen_bytes:
            return
        self.documents += 1
        self.bytes += size
        self.batch.append(document)
        if len(self.batch) == _BATCH:
            self.encode()

    def encode(self) -> None:
        """Encode what was taken and count."""
        encoded = self.encoder.encode(self.batch, where=self.where)
        self.tokens += sum(len(document) for document in encoded)
        texts = [document_text(document) for document in self.batch]
        self.default_ids += self.encoder.default_control_ids(texts)
        self.exact += sum(self.encoder.decode(ids) == text for ids, text in zip(encoded, texts, strict=True))
        self.batch.clear()


def _measure(
    path: Path, file: SourceFile, files: Sequence[SourceFile], rule: TextRule, under: Conditions
) -> StratumCalibration:
    counts = ReadCounts()
    documents = heldout_documents = text_bytes = trained_bytes = longest_bytes = 0
    sample = _Sample(under.encoder, f"{path} (calibration sample)")
    holdout = Holdout(identity=under.identity, fraction=under.heldout)
    for document in iter_documents(path, rule, counts, under.encoder.markers):
        text = document_text(document)
        data = text.encode("utf-8")
        size = len(data)
        documents += 1
        text_bytes += size
        longest_bytes = max(longest_bytes, size)
        if holdout.holds(data):
            heldout_documents += 1
        else:
            trained_bytes += size
            sample.offer(document, size, trained_bytes)
    sample.encode()
    return StratumCalibration(
        file=file.path,
        file_digest=file.digest,
        file_bytes=file.size,
        documents=documents,
        heldout_documents=heldout_documents,
        skipped=counts.to_json(),
        text_bytes=text_bytes,
        trained_bytes=trained_bytes,
        sampled_documents=sample.documents,
        sampled_bytes=sample.bytes,
        sampled_tokens=sample.tokens,
        default_control_ids=sample.default_ids,
        decoded_exactly=sample.exact,
        longest_bytes=longest_bytes,
        files_sha256=files_digest(files),
    )
