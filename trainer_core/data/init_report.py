"""What `data init` tells: shares, tokens available, strata, encoding report and the bound on disk use.

Only formats what was pinned and measured; never reads a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer_core.data.calibration import SourceCalibration
from trainer_core.data.sources import DataLine

OPEN_FILES = 3
"""Tokenized files a stratum holds at once at most: two left open and the one being read."""


@dataclass(frozen=True, kw_only=True)
class InitReport:
    """What `data init` found, for people and as JSON."""

    work: str
    """Folder of the data line."""
    line: DataLine
    """What was pinned."""
    eos: str
    """Spelling of the end-of-document token."""
    calibration: dict[str, SourceCalibration]
    """What was measured."""

    def source_tokens(self, name: str) -> int:
        """Estimated tokens of a source."""
        return sum(stratum.tokens for stratum in self.line.source(name).strata)

    def disk_bound_bytes(self) -> int:
        """Most bytes of shards and open files: two cycles, and the largest files of every stratum."""
        open_tokens = 0
        for source in self.line.sources:
            for stratum in source.strata:
                sizes = sorted(source.estimated_tokens(f.path) for f in source.stratum_files(stratum.name))
                open_tokens += sum(sizes[-OPEN_FILES:])
        width = 2 if self.line.token_dtype == "uint16" else 4
        return (2 * self.line.cycle_tokens + open_tokens) * width

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        piece = self.line.pieces[0]
        return {
            "work": self.work,
            "data_digest": self.line.digest(),
            "cycle_tokens": self.line.cycle_tokens,
            "segments": self.line.segments,
            "token_dtype": self.line.token_dtype,
            "eos_id": self.line.eos_id,
            "eos": self.eos,
            "sources": {
                source.name: {
                    "share": piece.shares.get(source.name, 0) / piece.denominator,
                    "tokens": self.source_tokens(source.name),
                    "files": len(source.files),
                    "ignored": len(source.ignored),
                    "text": source.text.to_json(),
                    "strata": {stratum.name: stratum.tokens for stratum in source.strata},
                }
                for source in self.line.sources
            },
            "disk_bound_bytes": self.disk_bound_bytes(),
        }

    def __str__(self) -> str:
        value = self.to_json()
        lines = [
            f"data line {self.work}",
            f"  end of document: {self.eos!r} (id {self.line.eos_id}); stored as {self.line.token_dtype}",
            f"  cycles of {self.line.cycle_tokens:,} tokens in {self.line.segments} segment(s)",
        ]
        for name, source in value["sources"].items():
            cycles = source["tokens"] / max(1.0, source["share"] * self.line.cycle_tokens)
            lines.append(
                f"  {name}: share {source['share']:.4f}, about {source['tokens']:,} tokens in "
                f"{source['files']} files ({source['ignored']} ignored), enough for {cycles:,.1f} cycles"
            )
            total = max(1, source["tokens"])
            strata = ", ".join(f"{key} {tokens / total:.1%}" for key, tokens in source["strata"].items())
            lines.append(f"    strata: {strata}")
            measured = self.calibration[name].strata.values()
            tokens = max(1, sum(entry.sampled_tokens for entry in measured))
            wrong = sum(entry.default_control_ids for entry in measured)
            exact = sum(entry.decoded_exactly for entry in measured)
            documents = sum(entry.sampled_documents for entry in measured)
            lines.append(
                f"    sample: {exact} of {documents} documents decode to their exact text; default matching "
                f"would read {1e6 * wrong / tokens:.1f} control tokens per million, ours reads none"
            )
        lines.append(
            f"  disk: at most about {value['disk_bound_bytes'] / 1e6:,.1f} MB of shards and open files"
        )
        return "\n".join(lines)
