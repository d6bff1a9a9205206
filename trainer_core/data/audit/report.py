"""`data report`: what cycles really held, from their manifests: shares at every level against the recipe.

Only reads. Rows are compared with the recipe's share of every row, strata by the planner's debts, which are
exact: a stratum is never further from its share than one document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from trainer_core.data.audit.duplicates import Repeated, repeated
from trainer_core.data.making.calibration import SourceCalibration, load_calibration
from trainer_core.data.plan.manifest import Manifest, read_cycle_manifest
from trainer_core.data.plan.state import PlanState
from trainer_core.data.plan.state_file import planned_cycles
from trainer_core.data.sources import DataLine, SourceSpec, load_data_line
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths


@dataclass(frozen=True, kw_only=True)
class StratumReport:
    """One stratum of a source over the cycles."""

    stratum: str
    """Its name."""
    tokens: int
    """Tokens of the documents that the cycles took new."""
    share: float
    """Its share of the source by the data line."""
    taken: float
    """Its share of what was taken."""
    deviation_tokens: float
    """Tokens taken above its exact share; negative below."""
    longest_tokens: int
    """Tokens of the longest document of the file that was measured."""

    @property
    def deviation_documents(self) -> float:
        """The deviation in longest documents of the measured file; another file may have a longer one."""
        return self.deviation_tokens / self.longest_tokens


@dataclass(frozen=True, kw_only=True)
class SourceReport:
    """One source over the cycles."""

    source: str
    """Its nickname."""
    rows: int
    """Rows trained."""
    tokens: int
    """Their targets."""
    share: float
    """Its share of all rows by the recipe, over these cycles."""
    trained: float
    """Its share of all rows."""
    deviation_rows: float
    """Rows above its exact share; negative below."""
    documents: int
    """Documents taken new."""
    heldout_docs: int
    """Documents held out of the files that were begun."""
    skipped: dict[str, int]
    """Documents skipped or repaired of the files that were begun, by cause."""
    duplicates: int
    """Repetitions of a text within its file, of the files that were begun."""
    repeated: dict[str, int]
    """Estimates of repetitions across files and sources, over all files tokenized so far."""
    characters_per_token: float | None
    """Characters of text per token; None without a record of them."""
    strata: tuple[StratumReport, ...]
    """By stratum, in the data line's order."""


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """All sources over the cycles."""

    work: str
    """Folder of the data line."""
    first: int
    """First cycle."""
    last: int
    """Last cycle."""
    sources: tuple[SourceReport, ...]
    """In the data line's order, those with a share or a row."""

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "work": self.work,
            "cycles": [self.first, self.last],
            "sources": {
                report.source: {
                    **{k: v for k, v in vars(report).items() if k not in ("source", "strata")},
                    "strata": {
                        s.stratum: {
                            **{k: v for k, v in vars(s).items() if k != "stratum"},
                            "deviation_documents": s.deviation_documents,
                        }
                        for s in report.strata
                    },
                }
                for report in self.sources
            },
        }

    def __str__(self) -> str:
        lines = [f"data line {self.work}, cycles {self.first} to {self.last}"]
        for report in self.sources:
            lines += _source_lines(report)
        return "\n".join(lines)


def data_report(work: Path, cycles: tuple[int, int] | None = None) -> DataReport:
    """The report over cycles first to last, or over all that are planned."""
    paths = DataPaths(Path(work))
    line = load_data_line(paths.root)
    planned = planned_cycles(paths)
    first, last = cycles or (0, planned - 1)
    if not 0 <= first <= last < planned:
        raise Refused(
            f"{paths.root}: there are {planned} planned cycles"
            + (
                f", 0 to {planned - 1}; cycles {first} to {last} were asked for"
                if cycles
                else " to report on"
            )
        )
    manifests = [read_cycle_manifest(paths, cycle, line=line) for cycle in range(last + 1)]
    files = _FileFacts(manifests)
    chosen = manifests[first:]
    calibration, again = load_calibration(paths.root), repeated(paths)
    reports = [
        _source(line, spec, chosen, files, calibration.get(spec.name), again.get(spec.name))
        for spec in line.sources
    ]
    return DataReport(
        work=str(paths.root),
        first=first,
        last=last,
        sources=tuple(report for report in reports if report.rows or report.share),
    )


class _FileFacts:
    """What the first piece of every file says about the file, over all cycles so far."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._records: dict[tuple[str, str], dict[str, Any]] = {}
        for manifest in manifests:
            for name, pieces in manifest.value["pieces"].items():
                for piece in pieces:
                    if piece["doc_from"] == 0:
                        self._records.setdefault((name, piece["path"]), piece)

    def characters(self, name: str, piece: dict[str, Any]) -> float | None:
        """Characters of a piece's documents: its part of the file's, by tokens; None if not recorded."""
        record = self._records.get((name, piece["path"]), {})
        if not record.get("file_tokens"):
            return None
        return int(record["characters"]) * int(piece["tokens"]) / int(record["file_tokens"])


def _source(
    line: DataLine,
    spec: SourceSpec,
    manifests: Sequence[Manifest],
    files: _FileFacts,
    calibration: SourceCalibration | None,
    again: Repeated | None,
) -> SourceReport:
    name = spec.name
    rows = all_rows = tokens = 0
    expected = Fraction(0)
    for manifest in manifests:
        piece = line.piece_at(manifest.cycle)
        share = Fraction(piece.shares.get(name, 0), piece.denominator)
        for part in manifest.parts:
            own = part["rows"].get(name, 0)
            rows, all_rows = rows + own, all_rows + part["num_rows"]
            tokens += own * part["row_length"]
            expected += share * part["num_rows"]
    pieces = [piece for manifest in manifests for piece in manifest.value["pieces"].get(name, [])]
    begun = [piece for piece in pieces if piece["doc_from"] == 0]
    skipped: Counter[str] = Counter()
    for piece_record in begun:
        skipped.update(piece_record["skipped"])
    return SourceReport(
        source=name,
        rows=rows,
        tokens=tokens,
        share=float(expected / all_rows),
        trained=rows / all_rows,
        deviation_rows=float(rows - expected),
        documents=sum(piece["doc_to"] - piece["doc_from"] for piece in pieces),
        heldout_docs=sum(piece["heldout_docs"] for piece in begun),
        skipped=dict(skipped),
        duplicates=sum(piece.get("duplicates", 0) for piece in begun),
        repeated=again.estimates() if again is not None else {},
        characters_per_token=_characters_per_token(name, pieces, files),
        strata=_strata(spec, manifests, pieces, calibration),
    )


def _characters_per_token(name: str, pieces: Sequence[dict[str, Any]], files: _FileFacts) -> float | None:
    counted = [(files.characters(name, piece), piece["tokens"]) for piece in pieces]
    known = [(characters, tokens) for characters, tokens in counted if characters is not None]
    total = sum(tokens for _, tokens in known)
    return sum(characters for characters, _ in known) / total if total else None


def _strata(
    spec: SourceSpec,
    manifests: Sequence[Manifest],
    pieces: Sequence[dict[str, Any]],
    calibration: SourceCalibration | None,
) -> tuple[StratumReport, ...]:
    taken: Counter[str] = Counter()
    for piece in pieces:
        taken[piece["stratum"]] += piece["tokens"]
    weights = sum(stratum.tokens for stratum in spec.strata)
    before = PlanState.from_json(manifests[0].value["state_before"]["values"])
    after = manifests[-1].state_after()
    measured = calibration.strata if calibration is not None else {}
    return tuple(
        StratumReport(
            stratum=stratum.name,
            tokens=taken[stratum.name],
            share=stratum.tokens / weights,
            taken=taken[stratum.name] / max(1, taken.total()),
            deviation_tokens=(_debt(before, spec.name, stratum.name) - _debt(after, spec.name, stratum.name))
            / weights,
            longest_tokens=measured[stratum.name].longest_tokens if stratum.name in measured else 1,
        )
        for stratum in spec.strata
    )


def _debt(state: PlanState, source: str, stratum: str) -> int:
    """(exact share - tokens taken) times the sum of the weights, since the line's beginning."""
    progress = state.sources.get(source)
    entry = progress.strata.get(stratum) if progress is not None else None
    return entry.debt if entry is not None else 0


def _source_lines(report: SourceReport) -> list[str]:
    skipped = ", ".join(f"{count:,} {cause}" for cause, count in report.skipped.items()) or "none"
    density = (
        "" if report.characters_per_token is None else f", {report.characters_per_token:.2f} characters/token"
    )
    lines = [
        f"  {report.source}: {report.tokens:,} tokens in {report.rows:,} rows, {report.trained:.4%} of all; "
        f"recipe {report.share:.4%}, {report.deviation_rows:+.2f} rows",
        f"    {report.documents:,} documents{density}; held out {report.heldout_docs:,}; skipped or "
        f"repaired: {skipped}; the same text again: {report.duplicates:,} within a file"
        + "".join(f", about {count:,} {cause.replace('_', ' ')}" for cause, count in report.repeated.items()),
    ]
    for s in report.strata:
        lines.append(
            f"    {s.stratum}: {s.tokens:,} tokens, {s.taken:.3%}; share {s.share:.3%}, "
            f"{s.deviation_tokens:+,.0f} tokens (longest document of the file measured at init: "
            f"{s.longest_tokens:,})"
        )
    return lines
