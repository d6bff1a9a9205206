"""How many cycles every stratum lasts, from the sizes measured at `data init`.

An estimate in tokens: a cycle takes cycle_tokens x source share x stratum share of each stratum. Never plans:
the exact counts are known only once a file is tokenized.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from trainer_core.data.sources import DataLine
from trainer_core.errors import DataUsedUp


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

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"cycles": self.cycles, "strata": [dict(vars(stratum)) for stratum in self.strata]}

    def __str__(self) -> str:
        lines = [f"{self.cycles} cycles, by the calibration:"]
        for stratum in self.strata:
            end = "enough" if stratum.used_up_at is None else f"used up at cycle {stratum.used_up_at}"
            lines.append(
                f"  {stratum.source}/{stratum.stratum}: {stratum.wanted:,} of {stratum.tokens:,}: {end}"
            )
        return "\n".join(lines)

    def require_enough(self) -> None:
        """Raise DataUsedUp naming every stratum that ends too early."""
        short = [
            f"source {s.source!r}, stratum {s.stratum!r}: used up at cycle {s.used_up_at}, "
            f"about {s.wanted - s.tokens:,} tokens short of {self.cycles} cycles"
            for s in self.strata
            if s.used_up_at is not None
        ]
        if short:
            raise DataUsedUp("\n".join(short))


def predict(line: DataLine, cycles: int) -> Prediction:
    """The outlook of every stratum over cycles 0 .. cycles - 1."""
    outlooks = []
    for source in line.sources:
        total = sum(stratum.tokens for stratum in source.strata)
        for stratum in source.strata:
            taken, used_up_at = Fraction(0), None
            for cycle in range(cycles):
                piece = line.piece_at(cycle)
                share = Fraction(piece.shares.get(source.name, 0), piece.denominator)
                taken += line.cycle_tokens * share * Fraction(stratum.tokens, total)
                if used_up_at is None and taken > stratum.tokens:
                    used_up_at = cycle
            outlooks.append(
                StratumOutlook(
                    source=source.name,
                    stratum=stratum.name,
                    tokens=stratum.tokens,
                    wanted=ceil(taken),
                    used_up_at=used_up_at,
                )
            )
    return Prediction(cycles=cycles, strata=tuple(outlooks))
