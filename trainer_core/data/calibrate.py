"""Tokens per byte of every stratum, measured on one seeded file each before anything is planned.

Owns calibration.json. Reads a whole file, so that one without text or a cut one is found here, and encodes a
sample spread over it. Also measures what the library's default matching would have read out of the same text,
and whether decoding gives the text back. Never decides shares: `initialize` does, from these numbers.
Invariant: integers only, so the same files give the same estimates everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.data.encode import Encoder
from trainer_core.data.holdout import is_held_out
from trainer_core.data.records import read_record
from trainer_core.data.sources import SourceFile, TextRule
from trainer_core.data.text import ReadCounts, iter_documents
from trainer_core.line.paths import DataPaths

FORMAT = "calibration/1"
_SAMPLED_FIRST = 64 << 10
_SAMPLED_PART = 64
_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class StratumCalibration:
    """What one file says about its stratum."""

    file: str
    """Path of the measured file."""
    file_digest: str
    """Its digest."""
    file_bytes: int
    """Its size on disk."""
    documents: int
    """Documents in it."""
    heldout_documents: int
    """Of these, the ones kept for validation."""
    skipped: dict[str, int]
    """Documents skipped or repaired by the reader, by cause."""
    text_bytes: int
    """UTF-8 bytes of all documents."""
    trained_bytes: int
    """UTF-8 bytes of the documents that are not held out."""
    sampled_documents: int
    """Documents encoded for the measurement."""
    sampled_bytes: int
    """Their UTF-8 bytes."""
    sampled_tokens: int
    """Their tokens, each document's end included."""
    default_control_ids: int
    """Control ids that the library's default matching reads out of them; ours reads none."""
    decoded_exactly: int
    """How many of them decode back to the exact text."""

    def estimate(self, file_bytes: int) -> int:
        """Tokens to train on to expect in `file_bytes` bytes of such files."""
        tokens = file_bytes * self.trained_bytes * self.sampled_tokens
        return tokens // (self.file_bytes * self.sampled_bytes)


def calibrate_stratum(
    folder: Path,
    files: Sequence[SourceFile],
    *,
    rule: TextRule,
    encoder: Encoder,
    identity: str,
    heldout: float,
    seed: int,
) -> StratumCalibration | None:
    """Measure the first file, in seeded order, that has text to train on; None if none of them has."""

    def held(text: str) -> bool:
        return is_held_out(text, identity=identity, fraction=heldout)

    for file in seeded_files(files, seed):
        measured = _measure(folder, file, rule, encoder, held)
        if measured.trained_bytes:
            return measured
    return None


def seeded_files(files: Sequence[SourceFile], seed: int) -> list[SourceFile]:
    """The files in an order that depends on seed and paths only."""
    return sorted(files, key=lambda file: hashlib.blake2b(f"{seed}/{file.path}".encode()).digest())


class _Sample:
    """The encoded part of a file: the first documents, then one 64th of the bytes that follow."""

    def __init__(self, encoder: Encoder, where: str) -> None:
        self.encoder, self.where = encoder, where
        self.documents = self.bytes = self.tokens = self.default_ids = self.exact = 0
        self.batch: list[str] = []

    def offer(self, text: str, size: int, seen_bytes: int) -> None:
        """Take the document if the sample is behind its part of the bytes seen."""
        if self.bytes >= _SAMPLED_FIRST and self.bytes * _SAMPLED_PART >= seen_bytes:
            return
        self.documents += 1
        self.bytes += size
        self.batch.append(text)
        if len(self.batch) == _BATCH:
            self.encode()

    def encode(self) -> None:
        """Encode what was taken and count."""
        encoded = self.encoder.encode(self.batch, where=self.where)
        self.tokens += sum(len(document) for document in encoded)
        self.default_ids += self.encoder.default_control_ids(self.batch)
        self.exact += sum(
            self.encoder.decode(ids) == text for ids, text in zip(encoded, self.batch, strict=True)
        )
        self.batch.clear()


def _measure(
    folder: Path, file: SourceFile, rule: TextRule, encoder: Encoder, held: Callable[[str], bool]
) -> StratumCalibration:
    counts = ReadCounts()
    documents = heldout_documents = text_bytes = trained_bytes = 0
    sample = _Sample(encoder, f"{folder / file.path} (calibration sample)")
    for text in iter_documents(folder / file.path, rule, counts):
        size = len(text.encode("utf-8"))
        documents += 1
        text_bytes += size
        if held(text):
            heldout_documents += 1
        else:
            trained_bytes += size
            sample.offer(text, size, trained_bytes)
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
    )


@dataclass(frozen=True, kw_only=True)
class SourceCalibration:
    """The strata of a source, and what they were measured under."""

    identity: str
    """Key of the held-out decision."""
    encode_sha256: str
    """Digest of the encode-only tokenizer copy."""
    text: TextRule
    """Resolved text rule."""
    heldout: float
    """Held-out fraction."""
    strata: dict[str, StratumCalibration]
    """By stratum."""

    def fits(self, other: SourceCalibration) -> bool:
        """Whether numbers measured for one hold for the other."""
        return (self.identity, self.encode_sha256, self.text, self.heldout) == (
            other.identity,
            other.encode_sha256,
            other.text,
            other.heldout,
        )


def calibration_to_json(sources: dict[str, SourceCalibration]) -> dict[str, Any]:
    """The content of calibration.json."""
    return {
        "format": FORMAT,
        "sources": {
            name: {
                "identity": source.identity,
                "encode_sha256": source.encode_sha256,
                "text": source.text.to_json(),
                "heldout": source.heldout,
                "strata": {stratum: dict(vars(entry)) for stratum, entry in source.strata.items()},
            }
            for name, source in sources.items()
        },
    }


def load_calibration(root: Path) -> dict[str, SourceCalibration]:
    """Read D/calibration.json. Raises Refused when there is none."""
    return read_record(
        DataPaths(root).calibration,
        FORMAT,
        _from_json,
        way_out="measurements can be had from another data line, or made anew without --calibration-from",
    )


def _from_json(value: dict[str, Any]) -> dict[str, SourceCalibration]:
    sources = {
        name: SourceCalibration(
            identity=source["identity"],
            encode_sha256=source["encode_sha256"],
            text=TextRule.from_json(source["text"]),
            heldout=source["heldout"],
            strata={key: StratumCalibration(**entry) for key, entry in source["strata"].items()},
        )
        for name, source in value["sources"].items()
    }
    for name, source in sources.items():
        for key, entry in source.strata.items():
            if min(entry.file_bytes, entry.sampled_bytes) < 1:
                raise ValueError(f"source {name}, stratum {key}: nothing was measured")
    return sources
