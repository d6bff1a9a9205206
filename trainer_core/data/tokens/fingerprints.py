"""64-bit hashes of a file's texts: exact duplicates within the file, and the sample kept for ever.

The hash depends on the text alone (no key), so the same text has the same one in every source and line. A
text is sampled if its hash is 0 modulo 256. Eight bytes of memory per document.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.files.listing import HASHES_SUFFIX
from trainer_core.errors import Refused
from trainer_core.line.files import write_bytes
from trainer_core.line.paths import DataPaths

SAMPLED_PART = 256
"""One text in so many is sampled."""


def hashes_path(paths: DataPaths, source: str, path: str) -> Path:
    """Where the sampled hashes of a file lie."""
    return paths.hashes / source / (path + HASHES_SUFFIX)


def check_sample(path: Path) -> None:
    """Raises Refused if a file holds no sorted, sampled hashes."""
    found = np.frombuffer(path.read_bytes()[: path.stat().st_size // 8 * 8], dtype="<u8")
    if path.stat().st_size % 8 or np.any(found % SAMPLED_PART) or np.any(found[1:] < found[:-1]):
        raise Refused(
            f"{path}: holds no sorted sample of hashes: it is damaged, and estimates of duplicates by it are "
            "wrong; restore it from a backup, or delete it"
        )


class Fingerprints:
    """The hashes of one file's texts."""

    def __init__(self) -> None:
        self._digests = bytearray()

    def add(self, text: bytes) -> None:
        """Note a document's UTF-8 bytes."""
        self._digests += hashlib.blake2b(text, digest_size=8).digest()

    @property
    def duplicates(self) -> int:
        """Documents whose text stood in the file before."""
        return len(self._sorted) - len(np.unique(self._sorted))

    def keep_sample(self, target: Path) -> None:
        """Write the sampled hashes, sorted, one for each document."""
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, self._sorted[self._sorted % SAMPLED_PART == 0].astype("<u8").tobytes())

    @cached_property
    def _sorted(self) -> NDArray[np.uint64]:
        return np.sort(np.frombuffer(self._digests, dtype="<u8"))
