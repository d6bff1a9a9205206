"""What a manifest must look like before anything is read out of it.

Names every key that a reader uses, with its type, and compares what stands in it twice. Never opens a file;
a manifest that passes can be read without further questions.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from trainer_core.data.plan.state import PlanState
from trainer_core.data.prepare.assemble import shard_path


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Part(_Record):
    row_length: PositiveInt
    num_rows: PositiveInt
    updates: PositiveInt
    start_token: NonNegativeInt
    order_start: NonNegativeInt
    order_digest: str


class _Shard(_Record):
    source: str
    path: str
    tokens: PositiveInt
    dtype: Literal["uint16", "uint32"]
    blake2b: str


class _Segment(_Record):
    part: NonNegativeInt
    first_row: NonNegativeInt
    rows: dict[str, PositiveInt]
    shards: Annotated[list[_Shard], Field(min_length=1)]


class _Docs(_Record):
    stratum: str
    path: str
    doc_from: NonNegativeInt
    token_from: NonNegativeInt = 0
    doc_to: NonNegativeInt


class _State(_Record):
    digest: str
    values: dict[str, Any]


class ManifestShape(_Record):
    """The keys of a manifest that readers use."""

    cycle: NonNegativeInt
    planner_version: int
    data_digest: str
    seed: int
    shares: Annotated[list[tuple[str, NonNegativeInt]], Field(min_length=1)]
    parts: Annotated[list[_Part], Field(min_length=1)]
    segments: Annotated[list[_Segment], Field(min_length=1)]
    pieces: dict[str, list[_Docs]]
    heads_in: dict[str, list[_Docs]]
    state_after: _State

    @model_validator(mode="after")
    def _fits_itself(self) -> ManifestShape:
        for index, part in enumerate(self.parts):
            segments = [segment for segment in self.segments if segment.part == index]
            bounds = [segment.first_row for segment in segments] + [part.num_rows]
            if bounds[0] != 0 or any(later <= first for first, later in pairwise(bounds)):
                raise ValueError(f"part {index}: its segments do not begin at rising rows from 0 on")
            if sum(sum(segment.rows.values()) for segment in segments) != part.num_rows:
                raise ValueError(f"part {index}: its segments do not hold its {part.num_rows} rows")
        for before, part in pairwise(self.parts):
            rows, tokens = before.num_rows, before.num_rows * before.row_length
            if (part.order_start, part.start_token) != (
                before.order_start + rows,
                before.start_token + tokens,
            ):
                raise ValueError("its parts do not follow each other")
        if [s.part for s in self.segments] != sorted(s.part for s in self.segments):
            raise ValueError("segments do not follow the order of the parts")
        for index, segment in enumerate(self.segments):
            if {s.source: s.path for s in segment.shards} != {
                name: shard_path(index, name) for name in segment.rows
            }:
                raise ValueError(f"segment {index}: its shards do not fit its rows")
        if PlanState.from_json(self.state_after.values).digest() != self.state_after.digest:
            raise ValueError("state_after: the digest does not fit the values")
        return self
