"""The manifest of a cycle: everything needed to read it, to rebuild its shards, and to plan the next one.

Canonical JSON without times, so planning again gives the same bytes; its sha256 is what checkpoints carry. A
manifest is written once, after the shards are in place, and never changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_core.data.plan.manifest_shape import ManifestShape
from trainer_core.data.plan.planner import CyclePlan, PartPlan
from trainer_core.data.plan.row_order import PartOrder, part_order
from trainer_core.data.plan.state import DocRange, PlanState, range_json, ranges
from trainer_core.data.prepare.assemble import SegmentRows
from trainer_core.data.records import read_record
from trainer_core.data.sources import DataLine, Piece
from trainer_core.errors import Refused
from trainer_core.line.files import canonical_json, write_bytes
from trainer_core.line.paths import DataPaths

if TYPE_CHECKING:  # readers of manifests need no tokenizer
    from trainer_core.data.tokens.open_files import OpenFiles

FORMAT = "manifest/1"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest as read from disk."""

    value: Mapping[str, Any]
    """The whole JSON object."""
    sha256: str
    """Hex digest of its canonical bytes."""

    @property
    def cycle(self) -> int:
        """Cycle, counted from 0."""
        return int(self.value["cycle"])

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Records of the parts."""
        return list(self.value["parts"])

    def state_after(self) -> PlanState:
        """Where the planner stands after the cycle."""
        return PlanState.from_json(self.value["state_after"]["values"])

    def segments(self) -> list[SegmentRows]:
        """Rows of each segment, in order, over all parts."""
        return [
            SegmentRows(
                part=segment["part"],
                row_length=self.parts[segment["part"]]["row_length"],
                rows={shard["source"]: segment["rows"][shard["source"]] for shard in segment["shards"]},
            )
            for segment in self.value["segments"]
        ]

    def streams(self) -> dict[str, tuple[DocRange, ...]]:
        """Document ranges of each source's stream."""
        return {
            name: ranges(self.value["heads_in"].get(name, [])) + ranges(pieces)
            for name, pieces in self.value["pieces"].items()
        }

    def shards(self) -> list[list[dict[str, Any]]]:
        """Shard records by segment."""
        return [list(segment["shards"]) for segment in self.value["segments"]]

    def order(self, part: int) -> PartOrder:
        """The order of a part's rows. Raises Refused when it is not the recorded one."""
        record = self.parts[part]
        bounds = [s["first_row"] for s in self.value["segments"] if s["part"] == part]
        order = part_order(
            Piece(from_cycle=0, shares=dict(self.value["shares"])),
            seed=self.value["seed"],
            cycle=self.cycle,
            part=part,
            order_start=record["order_start"],
            bounds=[*bounds, record["num_rows"]],
        )
        if order.digest() != record["order_digest"]:
            raise Refused(
                f"cycle {self.cycle}, part {part}: the row order is {order.digest()} in this version of "
                f"nstrain and was {record['order_digest']} when the cycle was planned "
                f"(planner {self.value['planner_version']}); continue with the version that planned it"
            )
        return order


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises Refused when it is missing, damaged or of another version."""
    return read_record(path, FORMAT, _checked, way_out="restore it from a backup")


def read_cycle_manifest(paths: DataPaths, cycle: int, *, line: DataLine | None = None) -> Manifest:
    """Read the manifest of a cycle. Raises Refused when it is another cycle's or another data line's."""
    path = paths.manifest(cycle)
    manifest = read_manifest(path)
    if manifest.cycle != cycle:
        raise Refused(f"{path}: this is the manifest of cycle {manifest.cycle}; restore it from a backup")
    planned = manifest.value["data_digest"]
    if line is not None and planned != (data_digest := line.digest(cycle)):
        raise Refused(
            f"{path}: the cycle was planned when the data line's digest was {planned}, {paths.data} now has "
            f"{data_digest}; put back the {paths.data.name} that it was planned with"
        )
    return manifest


def _checked(value: dict[str, Any]) -> Manifest:
    data = canonical_json(value)
    ManifestShape.model_validate_json(data)
    return Manifest(value=value, sha256=hashlib.sha256(data).hexdigest())


def write_manifest(path: Path, value: Mapping[str, Any]) -> None:
    """Write the canonical bytes: `sha256sum` of the file is the digest that checkpoints carry."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, canonical_json(dict(value)))


def plan_segments(plan: CyclePlan) -> list[SegmentRows]:
    """Rows of each segment of a plan, in order, over all parts."""
    return [
        SegmentRows(part=index, row_length=part.row_length, rows=part.order.segment_rows(segment))
        for index, part in enumerate(plan.parts)
        for segment in range(len(part.order.bounds) - 1)
    ]


def plan_streams(plan: CyclePlan) -> dict[str, tuple[DocRange, ...]]:
    """Document ranges of each source's stream of a plan."""
    return {
        name: (*source.head, *(docs for segment in source.pieces for docs in segment))
        for name, source in plan.sources.items()
    }


def manifest_value(
    line: DataLine, plan: CyclePlan, files: OpenFiles, shards: Sequence[Sequence[dict[str, Any]]]
) -> dict[str, Any]:
    """The manifest of a planned cycle whose shards are written."""
    return {
        "format": FORMAT,
        "cycle": plan.cycle,
        "planner_version": line.planner_version,
        "data_digest": line.digest(plan.cycle),
        "seed": line.seed,
        "piece": plan.piece,
        "shares": [[name, share] for name, share in line.pieces[plan.piece].shares.items()],
        "start_token": plan.parts[0].start_token,
        "parts": [_part(part) for part in plan.parts],
        "segments": _segments(plan, shards),
        "pieces": {name: _pieces(name, plan, files) for name in plan.sources},
        "heads_in": {name: _head(name, s.head, files) for name, s in plan.sources.items() if s.head},
        "heads_out": {name: _head(name, s.head_out, files) for name, s in plan.sources.items()},
        "state_before": {"digest": plan.before.digest(), "values": plan.before.to_json()},
        "state_after": {"digest": plan.after.digest(), "values": plan.after.to_json()},
        "tokenizer": {
            "sha256": line.tokenizer.sha256,
            # The version used: OpenFiles encodes with no other, and takes no file that another one made.
            "library_version": line.tokenizer.library_version,
            "encode_sha256": {name: line.source(name).encode_sha256 for name in plan.sources},
            "eos_id": line.eos_id,
        },
        # The guard stops at the first control id, so a published cycle has none; recorded to be checkable.
        "guard": {"control_ids": dict.fromkeys(plan.sources, 0)},
    }


def _part(part: PartPlan) -> dict[str, Any]:
    return {
        "row_length": part.row_length,
        "rows": part.order.rows(),
        "num_rows": part.num_rows,
        "updates": part.updates,
        "start_token": part.start_token,
        "order_start": part.order_start,
        "order_digest": part.order.digest(),
    }


def _segments(plan: CyclePlan, shards: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    first_rows = [row for part in plan.parts for row in part.order.bounds[:-1]]
    return [
        {"part": segment.part, "first_row": first, "rows": dict(segment.rows), "shards": list(records)}
        for first, segment, records in zip(first_rows, plan_segments(plan), shards, strict=True)
    ]


def _pieces(name: str, plan: CyclePlan, files: OpenFiles) -> list[dict[str, Any]]:
    """New documents in stream order; what a whole file held is counted with its first document."""
    records = []
    for segment, pieces in enumerate(plan.sources[name].pieces):
        for docs in pieces:
            ends = files.counts(name, docs.path)
            assert ends is not None, docs.path
            facts = files.facts(name, docs.path)
            begins = docs.doc_from == 0
            records.append(
                {
                    "segment": segment,
                    "stratum": docs.stratum,
                    "path": docs.path,
                    **files.pinned(name, docs.path).pinned(),
                    "doc_from": docs.doc_from,
                    "doc_to": docs.doc_to,
                    "tokens": docs.tokens(ends),
                    "documents": facts.documents if begins else 0,
                    "characters": facts.characters if begins else 0,
                    "file_tokens": facts.tokens if begins else 0,
                    "duplicates": facts.duplicates if begins else 0,
                    "heldout_docs": facts.heldout_docs if begins else 0,
                    "skipped": facts.skipped if begins else {},
                }
            )
    return records


def _head(name: str, head: Sequence[DocRange], files: OpenFiles) -> list[dict[str, Any]]:
    return [{**range_json(docs), **files.pinned(name, docs.path).pinned()} for docs in head]
