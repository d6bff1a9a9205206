"""How many cycles every stratum lasts, from the sizes measured at `data init`.

An estimate in tokens: a cycle trains what its whole updates hold (its nominal tokens while no training line
is known), times source share, times stratum share. Never plans: the exact counts are known only once a file
is tokenized. The work grows with cycles plus pieces times sources, so 10,000 cycles are quick.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import ceil, floor
from pathlib import Path
from typing import Any

from trainer_core.data.plan.consumer import Consumer, read_consumer
from trainer_core.data.plan.planner import whole_updates
from trainer_core.data.sources import DataLine, SourceSpec, load_data_line
from trainer_core.errors import DataUsedUp
from trainer_core.line.paths import DataPaths


@dataclass(frozen=True, kw_only=True)
class StratumOutlook:
    """What is asked of one stratum and what it has."""

    source: str
    """Nickname of the source."""
    stratum: str
    """Name of the stratum."""
    tokens: int
    """Estimated tokens it has."""
    wanted: int
    """Tokens that the cycles take of it."""
    used_up_at: int | None
    """First cycle it cannot fill, or None."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The outlook of a data line over its first cycles."""

    cycles: int
    """Number of cycles asked for."""
    strata: tuple[StratumOutlook, ...]
    """All strata in the recipe's order of sources."""

    @property
    def first_end(self) -> int | None:
        """First cycle that cannot be filled, or None."""
        return min((s.used_up_at for s in self.strata if s.used_up_at is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        strata = [dict(vars(stratum)) for stratum in self.strata]
        return {"cycles": self.cycles, "first_end": self.first_end, "strata": strata}

    def __str__(self) -> str:
        lines = [f"{self.cycles} cycles, by the calibration:"]
        for stratum in self.strata:
            end = "enough" if stratum.used_up_at is None else f"used up at cycle {stratum.used_up_at}"
            lines.append(
                f"  {stratum.source}/{stratum.stratum}: {stratum.wanted:,} of {stratum.tokens:,}: {end}"
            )
        first = self.first_end
        ends = [f"{s.source}/{s.stratum}" for s in self.strata if s.used_up_at == first]
        lines.append(
            "every cycle can be filled"
            if first is None
            else f"cycle {first} is the first that cannot be filled: {', '.join(ends)}"
        )
        return "\n".join(lines)

    def require_enough(self) -> None:
        """Raise DataUsedUp naming every stratum that ends too early, the earliest first."""
        ended = [(s.used_up_at, s) for s in self.strata if s.used_up_at is not None]
        short = [
            f"source {s.source!r}, stratum {s.stratum!r}: used up at cycle {cycle}, "
            f"about {s.wanted - s.tokens:,} tokens short of {self.cycles} cycles"
            for cycle, s in sorted(ended, key=lambda entry: entry[0])
        ]
        if short:
            raise DataUsedUp("\n".join(short))


def predict_work(work: Path, cycles: int) -> Prediction:
    """The outlook of a data line's folder; in whole updates once a training line reads it."""
    paths = DataPaths(Path(work))
    line = load_data_line(paths.root)
    return predict(line, cycles, read_consumer(paths.root) if paths.consumer.exists() else None)


def predict(line: DataLine, cycles: int, consumer: Consumer | None = None) -> Prediction:
    """The outlook of every stratum over cycles 0 .. cycles - 1."""
    trained = [0, *accumulate(_cycle_tokens(line, consumer, cycles))]
    strata: list[StratumOutlook] = []
    for source in line.sources:
        strata += _source_outlook(line, source, trained)
    return Prediction(cycles=cycles, strata=tuple(strata))


def _cycle_tokens(line: DataLine, consumer: Consumer | None, cycles: int) -> Iterator[int]:
    """Tokens that each cycle trains."""
    start = 0
    for cycle in range(cycles):
        tokens = line.cycle_tokens
        if consumer is not None:
            tokens = sum(part.tokens for part in whole_updates(line, consumer, cycle, start))
        yield tokens
        start += tokens


def _source_outlook(line: DataLine, source: SourceSpec, trained: Sequence[int]) -> list[StratumOutlook]:
    """Strata of a source; `trained` are the line's tokens before each cycle, and after the last.

    By the estimates all strata of a source end together: their shares are their estimates.
    """
    total = sum(stratum.tokens for stratum in source.strata)
    taken, used_up_at = Fraction(0), None
    cycles = len(trained) - 1
    starts = [min(piece.from_cycle, cycles) for piece in line.pieces]
    for piece, first, last in zip(line.pieces, starts, [*starts[1:], cycles], strict=True):
        share = Fraction(piece.shares.get(source.name, 0), piece.denominator)
        before, taken = taken, taken + share * (trained[last] - trained[first])
        if used_up_at is None and taken > total:
            tokens = floor(trained[first] + (total - before) / share)
            used_up_at = bisect_right(trained, tokens, first + 1, last + 1) - 1
    return [
        StratumOutlook(
            source=source.name,
            stratum=stratum.name,
            tokens=stratum.tokens,
            wanted=ceil(taken * Fraction(stratum.tokens, total)),
            used_up_at=used_up_at,
        )
        for stratum in source.strata
    ]
