"""The records of calibration.json: what was measured of every stratum, and what those numbers hold for.

Never measures and imports no tokenizer, so that whoever estimates disk or cycles can read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.data.records import read_record, refuse_other
from trainer_core.data.sources import SourceFile, TextRule
from trainer_core.line.files import sha256_json
from trainer_core.line.paths import DataPaths

FORMAT = "calibration/1"


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
    longest_bytes: int = 0
    """UTF-8 bytes of its longest document."""
    files_sha256: str = ""
    """Digest of the stratum's list of files with their digests."""

    def estimate(self, file_bytes: int) -> int:
        """Tokens to train on to expect in `file_bytes` bytes of such files."""
        tokens = file_bytes * self.trained_bytes * self.sampled_tokens
        return tokens // (self.file_bytes * self.sampled_bytes)

    @property
    def document_tokens(self) -> float:
        """Mean tokens of a document, its end included."""
        return self.sampled_tokens / max(1, self.sampled_documents)

    @property
    def longest_tokens(self) -> int:
        """Tokens to expect of the longest document."""
        return self.longest_bytes * self.sampled_tokens // max(1, self.sampled_bytes) + 1


def files_digest(files: Iterable[SourceFile]) -> str:
    """Digest of a list of pinned files: what numbers measured on them hold for."""
    return sha256_json(sorted([file.path, file.size, file.digest] for file in files))


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
        """Whether numbers measured under one hold for the other; `auto` accepts the rule that was found."""
        return (
            (self.identity, self.encode_sha256, self.heldout)
            == (other.identity, other.encode_sha256, other.heldout)
        ) and (other.text.kind == "auto" or self.text == other.text)

    def known(self, stratum: str, files: Iterable[SourceFile]) -> StratumCalibration | None:
        """The measurement of a stratum with exactly these files."""
        entry = self.strata.get(stratum)
        return entry if entry is not None and entry.files_sha256 == files_digest(files) else None


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
    return read_calibration(DataPaths(root).calibration)


def read_calibration(path: Path) -> dict[str, SourceCalibration]:
    """Read a file of measurements."""
    return read_record(
        path,
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
    refuse_other(value, calibration_to_json(sources))
    return sources
