"""What a manifest must look like before anything is read out of it.

Names every key with its type, refuses any other, and compares what stands in it twice. Never opens a file;
a manifest that passes can be read without further questions.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from trainer_core.data.plan.state import PlanState
from trainer_core.data.prepare.assemble import shard_path
from trainer_core.data.records import refuse_other


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _Part(_Record):
    row_length: PositiveInt
    rows: dict[str, NonNegativeInt]
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
    file_sha256: str = ""
    file_git_sha1: str = ""
    doc_from: NonNegativeInt
    doc_to: NonNegativeInt


class _Head(_Docs):
    token_from: NonNegativeInt


class _Piece(_Docs):
    segment: NonNegativeInt
    tokens: NonNegativeInt
    documents: NonNegativeInt
    characters: NonNegativeInt
    file_tokens: NonNegativeInt
    duplicates: NonNegativeInt
    heldout_docs: NonNegativeInt
    skipped: dict[str, NonNegativeInt]


class _State(_Record):
    digest: str
    values: dict[str, Any]

    @model_validator(mode="after")
    def _can_be_read(self) -> _State:
        refuse_other(self.values, PlanState.from_json(self.values).to_json())
        return self


class _Tokenizer(_Record):
    sha256: str
    library_version: str
    encode_sha256: dict[str, str]
    eos_id: NonNegativeInt


class _Guard(_Record):
    control_ids: dict[str, NonNegativeInt]


class ManifestShape(_Record):
    """The keys of a manifest."""

    format: str
    cycle: NonNegativeInt
    planner_version: int
    data_digest: str
    seed: int
    piece: NonNegativeInt
    start_token: NonNegativeInt
    shares: Annotated[list[tuple[str, NonNegativeInt]], Field(min_length=1)]
    parts: Annotated[list[_Part], Field(min_length=1)]
    segments: Annotated[list[_Segment], Field(min_length=1)]
    pieces: dict[str, list[_Piece]]
    heads_in: dict[str, list[_Head]]
    heads_out: dict[str, list[_Head]]
    state_before: _State
    state_after: _State
    tokenizer: _Tokenizer
    guard: _Guard

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
