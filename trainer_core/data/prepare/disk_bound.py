"""How many bytes a data line can hold at once: one formula, printed by `data init` and kept by the preparer.

Only values; never looks at a disk. Counts what comes and goes (shards, tokenized files, spools, downloads)
and the held-out streams; the records kept for ever (manifests, logs) are small and not in it.

The preparer keeps to it by three rules: another download begins only while all raw files together stay within
`RAW_BUDGET_BYTES` or none is there; a cycle is prepared only while fewer than `cycles` are on disk; and no
more files are tokenized at once than there are workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainer_core.data.making.calibration import SourceCalibration
from trainer_core.data.sources import DataLine, SourceSpec

RAW_BUDGET_BYTES = 16 << 30
"""Downloaded files that may lie in incoming/ at once; a single larger file may lie there alone."""
LEFT_OPEN_FILES = 2
"""Partly used files that a stratum keeps for the next cycles."""
HELDOUT_TOKENS = 1 << 20
"""Held-out tokens kept of a stratum, before the last document."""
_MARGIN = 1.25
"""Room for files that hold more tokens than the measured ones of their stratum."""
_SMALL = 1024
"""Bytes or tokens that count only where everything is tiny: file headers, a row's context token."""


@dataclass(frozen=True, kw_only=True)
class DiskBound:
    """Bytes by cause."""

    shards: int
    """Shards of the cycles on disk."""
    open_files: int
    """Tokenized files: what the next cycle takes, the ones left open, and the one opened last."""
    spools: int
    """Files in the making: tokens in reading order and in shuffled order."""
    downloads: int
    """Raw files of hub sources."""
    heldout: int
    """Held-out streams."""

    @property
    def total(self) -> int:
        """All together."""
        return self.shards + self.open_files + self.spools + self.downloads + self.heldout

    def to_json(self) -> dict[str, int]:
        """Bytes by cause and together."""
        return {**vars(self), "total": self.total}


def disk_bound(
    line: DataLine, calibration: Mapping[str, SourceCalibration], *, workers: int, cycles: int = 2
) -> DiskBound:
    """The bound with so many tokenize workers and at most `cycles` cycles on disk (one trained, one ahead).

    Rebuilding a deleted cycle beside it is not in it.
    """
    width = 2 if line.token_dtype == "uint16" else 4
    share = {
        source.name: max(piece.shares.get(source.name, 0) / piece.denominator for piece in line.pieces)
        for source in line.sources
    }
    opened = making = shards = heldout = 0.0
    for source in line.sources:
        # Every document's end is kept as 8 bytes beside its tokens.
        measured = calibration[source.name].strata.values()
        size = width + 8 / min(entry.document_tokens for entry in measured)
        largest = _largest(source.estimated_tokens(file.path) for file in source.files)
        rows = line.cycle_tokens * share[source.name] + line.segments * _SMALL
        shards += cycles * (rows * size + line.segments * _SMALL)
        opened += _open_tokens(line, source, share[source.name]) * size
        # Tokens in reading order and in shuffled order; a file may also be new, below `opened`.
        making = max(making, 2 * largest[0] * size)
        kept = sum(min(HELDOUT_TOKENS, int(4 * source.heldout * s.tokens)) for s in source.strata)
        longest = max(entry.longest_tokens for entry in measured)
        heldout += (kept + len(source.strata) * (longest + _SMALL)) * size
    return DiskBound(
        shards=int(shards),
        open_files=int(opened),
        spools=int(max(1, workers) * making),
        downloads=raw_bytes(line),
        heldout=int(heldout),
    )


def raw_bytes(line: DataLine) -> int:
    """Most bytes of downloaded files at once; 0 for a line of folders only."""
    sizes = [file.size for source in line.sources if source.repo is not None for file in source.files]
    return min(sum(sizes), max(RAW_BUDGET_BYTES, *sizes)) if sizes else 0


def _open_tokens(line: DataLine, source: SourceSpec, share: float) -> int:
    """Tokens of the files that are tokenized at once; on disk a file stays whole until it is used up.

    A stratum's files are opened until they hold what a cycle wants: beside that, the last of them and the
    used parts of those left open. A source also keeps its head's file and one opened to fill its last row.
    """
    total = sum(stratum.tokens for stratum in source.strata)
    everything = beside = 0
    for stratum in source.strata:
        files = _largest(source.estimated_tokens(file.path) for file in source.stratum_files(stratum.name))
        wanted = int(_MARGIN * line.cycle_tokens * share * stratum.tokens / total) + _SMALL
        everything += sum(files)
        beside += min(sum(files), wanted + sum(files[: LEFT_OPEN_FILES + 1]))
    largest = _largest(source.estimated_tokens(file.path) for file in source.files)
    return min(everything, beside + sum(largest[:2]))


def _largest(tokens: Iterable[int]) -> list[int]:
    """Files by falling size, each with its margin."""
    return sorted((int(count * _MARGIN) + _SMALL for count in tokens), reverse=True)
