"""Tiny data lines for tests: in memory for the planner, on disk with a byte tokenizer for everything else."""

from collections.abc import Mapping, Sequence

import numpy as np

from trainer_core.data.consumer import Consumer, ConsumerPiece
from trainer_core.data.sources import (
    DataLine,
    Piece,
    SourceFile,
    SourceSpec,
    Stratum,
    TextRule,
    TokenizerRecord,
)

Lengths = Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]
"""Token counts of documents: source -> stratum -> file -> lengths (EOS included)."""


def planned_line(
    lengths: Lengths, *, cycle_tokens: int, shares: Mapping[str, int], segments: int = 1, seed: int = 7
) -> DataLine:
    """A data line over files of known document lengths; nothing of it is on disk."""
    sources = []
    for name, strata in lengths.items():
        files = [
            SourceFile(path=path, size=sum(docs), sha256="0" * 64, stratum=stratum)
            for stratum, entries in strata.items()
            for path, docs in entries.items()
        ]
        sources.append(
            SourceSpec(
                name=name,
                identity=name,
                folder="/nowhere",
                glob="**/*",
                stratum_rule=1,
                text=TextRule(kind="column", column="text"),
                markers=(),
                heldout=0.0,
                encode_sha256="0" * 64,
                files=tuple(sorted(files, key=lambda file: file.path)),
                ignored=(),
                strata=tuple(
                    Stratum(name=stratum, tokens=sum(sum(docs) for docs in entries.values()))
                    for stratum, entries in sorted(strata.items())
                ),
            )
        )
    return DataLine(
        cycle_tokens=cycle_tokens,
        seed=seed,
        segments=segments,
        planner_version=1,
        eos_id=0,
        token_dtype="uint16",
        tokenizer=TokenizerRecord(
            path="/nowhere", sha256="0" * 64, library_version="0", vocab_size=257, largest_id=256
        ),
        sources=tuple(sources),
        pieces=(Piece(from_cycle=0, shares=dict(shares)),),
    )


def one_consumer(*, row_length: int, tokens_per_update: int) -> Consumer:
    """A consumer with one row length and one batch size."""
    return Consumer(
        line="/lines/trunk",
        row_lengths=(ConsumerPiece(start=0, end=None, value=row_length),),
        batches=(ConsumerPiece(start=0, end=None, value=tokens_per_update),),
    )


class KnownCounts:
    """Document ends by source and path, as if every file were tokenised."""

    def __init__(self, lengths: Lengths) -> None:
        self.ends = {
            (source, path): np.cumsum(docs, dtype=np.int64)
            for source, strata in lengths.items()
            for entries in strata.values()
            for path, docs in entries.items()
        }

    def __call__(self, source: str, path: str) -> np.ndarray | None:
        return self.ends.get((source, path))

    def estimate(self, source: str, path: str) -> int:
        """Exactly what the file holds."""
        ends = self.ends[source, path]
        return int(ends[-1]) if len(ends) else 0


def random_lengths(
    seed: int, *, sources: int = 2, strata: int = 3, files: int = 5, docs: int = 40, longest: int = 300
) -> dict[str, dict[str, dict[str, list[int]]]]:
    """Skewed document lengths, strata of very different sizes."""
    rng = np.random.default_rng(seed)
    return {
        f"s{s}": {
            f"t{t}": {
                f"t{t}/f{f}.jsonl": (
                    1 + rng.integers(0, longest, size=docs * (1 + t)) // rng.integers(1, 9)
                ).tolist()
                for f in range(files)
            }
            for t in range(strata)
        }
        for s in range(sources)
    }
