"""Duplicates across files and sources, estimated from the sampled text hashes of every tokenized file.

D/hashes/<source>/<path>.u64 holds the 64-bit hashes of a file's texts that are 0 modulo 256: the same text
is sampled wherever it stands, so what repeats in the sample repeats in the corpus 256 times as often. Never
reads text. Duplicates within a file are counted exactly when it is tokenized and are not counted here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.files.listing import HASHES_SUFFIX
from trainer_core.data.tokens.fingerprints import SAMPLED_PART
from trainer_core.line.paths import DataPaths

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """Texts of one source that stand elsewhere too, estimated from the sample."""

    files: int
    """Files of the source in the sample."""
    texts: int
    """Texts of the sample, each counted once per file."""
    within_source: int
    """Of these, repetitions of a text of another file of the source."""
    across_sources: int
    """Of these, texts that another source has too."""

    def estimates(self) -> dict[str, int]:
        """Documents of the whole corpus, by cause."""
        return {
            "repeated_across_files": self.within_source * SAMPLED_PART,
            "also_in_other_sources": self.across_sources * SAMPLED_PART,
        }


def repeated(paths: DataPaths) -> dict[str, Repeated]:
    """By source, for every source that has sampled hashes."""
    root = paths.hashes
    by_source: dict[str, list[Hashes]] = {}
    for path in sorted(filter(Path.is_file, root.rglob("*" + HASHES_SUFFIX))):
        by_source.setdefault(path.relative_to(root).parts[0], []).append(_read(path))
    distinct = {name: np.unique(np.concatenate(files)) for name, files in by_source.items()}
    everywhere, sources = (
        np.unique(np.concatenate(list(distinct.values())), return_counts=True)
        if distinct
        else (np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))
    )
    shared = everywhere[sources > 1]
    return {
        name: Repeated(
            files=len(files),
            texts=(texts := sum(len(file) for file in files)),
            within_source=texts - len(distinct[name]),
            across_sources=int(np.isin(distinct[name], shared, assume_unique=True).sum()),
        )
        for name, files in by_source.items()
    }


def _read(path: Path) -> Hashes:
    return np.unique(np.fromfile(path, dtype="<u8").astype(np.uint64))
