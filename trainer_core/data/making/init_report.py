"""What `data init` and `data append` tell: shares, tokens available, text rules, and the bound on disk use.

Only formats what was pinned and measured; never reads a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

from trainer_core.data.files.listing import reasons, why_ignored
from trainer_core.data.making.calibration import SourceCalibration
from trainer_core.data.prepare.disk_bound import DiskBound, disk_bound
from trainer_core.data.sources import DataLine, Piece, SourceSpec

_SHOWN_STRATA = 12
_MANY_CYCLES = 100_000


@dataclass(frozen=True, kw_only=True)
class InitReport:
    """What was pinned and measured, for people and as JSON."""

    work: str
    """Folder of the data line."""
    line: DataLine
    """What was pinned."""
    eos: str
    """Spelling of the end-of-document token."""
    calibration: dict[str, SourceCalibration]
    """What was measured."""
    workers: int
    """Files tokenized at once on this host."""
    taken_over: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Strata by source whose numbers were measured before, here or for another data line."""

    def source_tokens(self, name: str) -> int:
        """Estimated tokens of a source."""
        return sum(stratum.tokens for stratum in self.line.source(name).strata)

    def too_short(self) -> list[str]:
        """What keeps the first cycle from ever being filled, by the estimates; [] = nothing."""
        problems = []
        for source in self.line.sources:
            has, wanted = self.source_tokens(source.name), _per_cycle(self.line, self.line.pieces[0], source)
            if has < wanted:
                problems.append(
                    f"source {source.name!r}: holds about {has:,} tokens to train on, its share of a cycle "
                    f"of {self.line.cycle_tokens:,} is {ceil(wanted):,}, so not even cycle 0 can be made; "
                    "choose a smaller --cycle-tokens, add text, or give it a smaller share"
                )
        return problems

    def disk(self) -> DiskBound:
        """Most bytes that the data line takes at once."""
        return disk_bound(self.line, self.calibration, workers=self.workers)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        disk = self.disk()
        return {
            "work": self.work,
            "data_digest": self.line.digest(),
            "cycle_tokens": self.line.cycle_tokens,
            "segments": self.line.segments,
            "token_dtype": self.line.token_dtype,
            "eos_id": self.line.eos_id,
            "eos": self.eos,
            "sources": {source.name: self._source(source) for source in self.line.sources},
            "disk_bound_bytes": disk.total,
            "disk": disk.to_json(),
        }

    def _source(self, source: SourceSpec) -> dict[str, Any]:
        shares = [piece.shares.get(source.name, 0) / piece.denominator for piece in self.line.pieces]
        measured = self.calibration[source.name].strata
        sampled = list(measured.values())
        tokens = max(1, sum(entry.sampled_tokens for entry in sampled))
        total = self.source_tokens(source.name)
        return {
            "share": shares[0],
            "shares": shares,
            "tokens": total,
            "cycles": _lasts(self.line, source, total),
            "repo": source.repo,
            "commit": source.commit,
            "identity": source.identity,
            "files": len(source.files),
            "ignored": len(source.ignored),
            "ignored_files": {path: why_ignored(path, source.folder) for path in source.ignored},
            "text": source.text.to_json(),
            "markers": list(source.markers),
            "strata": {stratum.name: stratum.tokens for stratum in source.strata},
            "heldout": source.heldout,
            "taken_over": list(self.taken_over.get(source.name, ())),
            "sampled_documents": sum(entry.sampled_documents for entry in sampled),
            "decoded_exactly": sum(entry.decoded_exactly for entry in sampled),
            "default_control_ids_per_million": 1e6 * sum(e.default_control_ids for e in sampled) / tokens,
            "bytes_per_token": sum(entry.sampled_bytes for entry in sampled) / tokens,
        }

    def __str__(self) -> str:
        value = self.to_json()
        lines = [
            f"data line {self.work}",
            f"  end of document: {self.eos!r} (id {self.line.eos_id}); stored as {self.line.token_dtype}",
            f"  cycles of {self.line.cycle_tokens:,} tokens"
            + (f" in {self.line.segments} segments" if self.line.segments > 1 else ""),
        ]
        for source in self.line.sources:
            lines += self._source_lines(source, value["sources"][source.name])
        disk = self.disk()
        lines.append(
            f"  disk: at most about {_size(disk.total)}: shards of two cycles {_size(disk.shards)}, "
            f"tokenized files {_size(disk.open_files)}, {self.workers} in the making {_size(disk.spools)}, "
            f"downloads {_size(disk.downloads)}, held-out text {_size(disk.heldout)}"
        )
        return "\n".join(lines)

    def _source_lines(self, source: SourceSpec, value: dict[str, Any]) -> list[str]:
        shares = " then ".join(f"{share:.4f}" for share in dict.fromkeys(value["shares"]))
        lasts = "more than 100,000" if value["cycles"] is None else f"{value['cycles']:,}"
        rule = json.dumps(value["text"], ensure_ascii=False)
        lines = [
            f"  {source.name}: share {shares}, about {value['tokens']:,} tokens in {value['files']} files, "
            f"enough for {lasts} cycles",
            f"    from {source.folder or f'{source.repo}, {source.revision} = {source.commit}'}; "
            f"text {rule}, held-out key {source.identity!r}, {source.heldout:.2%} held out",
        ]
        plain = [part for part in source.text.template if _constant(part) and part not in source.markers]
        if plain:
            lines.append(
                f"    plain text of the template, no tokens of their own: {', '.join(map(repr, plain))}"
            )
        total = max(1, value["tokens"])
        by_size = sorted(value["strata"].items(), key=lambda item: -item[1])
        strata = ", ".join(f"{key} {tokens / total:.1%}" for key, tokens in by_size[:_SHOWN_STRATA])
        more = len(by_size) - _SHOWN_STRATA
        lines.append(f"    strata: {strata}" + (f" and {more} more" if more > 0 else ""))
        lines.append(
            f"    sample: {value['decoded_exactly']} of {value['sampled_documents']} documents decode to "
            f"their exact text; {value['bytes_per_token']:.2f} bytes per token; default matching would read "
            f"{value['default_control_ids_per_million']:.1f} control tokens per million, ours reads "
            + (f"only its own markers {', '.join(source.markers)}" if source.markers else "none")
        )
        if not source.heldout:
            lines.append(
                "    nothing is held out, so no training line can be made: `nstrain new` needs held-out text "
                'of every source; raise "heldout" and make another data line'
            )
        if source.ignored:
            lines.append(f"    {reasons(source.ignored, source.folder)}")
        if value["taken_over"]:
            lines.append(f"    measured before: {len(value['taken_over'])} of {len(by_size)} strata")
        return lines


def _constant(part: str) -> bool:
    """Whether a part of a template is the same visible characters for every message."""
    return bool(part.strip()) and "{role}" not in part and "{content}" not in part


def _per_cycle(line: DataLine, piece: Piece, source: SourceSpec) -> Fraction:
    """Tokens of a source that a cycle of a piece takes."""
    return Fraction(line.cycle_tokens * piece.shares.get(source.name, 0), piece.denominator)


def _lasts(line: DataLine, source: SourceSpec, tokens: int) -> int | None:
    """Whole cycles until its tokens are used up, piece by piece; None when there are more than 100,000."""
    left = Fraction(tokens)
    ends = [piece.from_cycle for piece in line.pieces[1:]]
    for piece, end in zip(line.pieces, [*ends, None], strict=True):
        rate = _per_cycle(line, piece, source)
        if rate and (end is None or left < rate * (end - piece.from_cycle)):
            cycles = piece.from_cycle + left // rate
            return cycles if cycles <= _MANY_CYCLES else None
        left -= rate * ((end or piece.from_cycle) - piece.from_cycle)
    return None


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 10**9 else f"{count / 1e6:,.1f} MB"
