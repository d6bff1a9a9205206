"""Where the planner stands between two cycles: values, and their JSON form in state.json and manifests.

Nothing here reads a file or decides anything. Equal states have equal bytes and digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer_core.line.files import sha256_json

FORMAT = "data-state/1"

DocEnds = NDArray[np.int64]
"""Positions just after each document in a tokenized file."""


class DocRange(NamedTuple):
    """Neighbouring documents of a tokenized file (in their shuffled order, held-out ones left out).

    A tuple because a plan makes thousands: it takes a third of a frozen dataclass's time.
    """

    stratum: str
    """Stratum of the file."""
    path: str
    """File within its source."""
    doc_from: int
    """First document."""
    token_from: int
    """Tokens of the first document that are left out because an earlier cycle trained them."""
    doc_to: int
    """Document after the last."""

    def start(self, ends: DocEnds) -> int:
        """Position of the first token in the tokenized file."""
        return (int(ends[self.doc_from - 1]) if self.doc_from else 0) + self.token_from

    def end(self, ends: DocEnds) -> int:
        """Position after the last token."""
        return int(ends[self.doc_to - 1]) if self.doc_to else 0

    def tokens(self, ends: DocEnds) -> int:
        """Number of tokens."""
        return self.end(ends) - self.start(ends)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenFile:
    """A file of which some documents are not yet in a cycle."""

    path: str
    """File within its source."""
    next_doc: int
    """First document not yet taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StratumState:
    """Progress through a stratum."""

    next_file: int = 0
    """Index, in the seeded order of the stratum's files, of the first file never opened."""
    open: tuple[OpenFile, ...] = ()
    """Partly used files, in the order in which they were opened."""
    debt: int = 0
    """(exact share - tokens taken) times the sum of the source's stratum weights: an exact integer."""


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """Progress through a source."""

    strata: dict[str, StratumState] = field(default_factory=dict)
    """By name; a stratum that was never touched is missing."""
    head: tuple[DocRange, ...] = ()
    """Tokens taken but not yet trained, in stream order; the first one was a target already (context)."""


@dataclass(frozen=True, kw_only=True)
class PlanState:
    """Progress through a data line."""

    next_cycle: int = 0
    """First cycle without a plan."""
    start_token: int = 0
    """Tokens that the line has trained before that cycle."""
    piece: int = 0
    """Recipe piece of the cycle before; its order goes on if the next cycle has the same piece."""
    order_position: int = 0
    """Rows taken from the piece's source sequence."""
    sources: dict[str, SourceState] = field(default_factory=dict)
    """By name; a source that was never used is missing."""

    def to_json(self) -> dict[str, Any]:
        """The values, without digest."""
        return {
            "format": FORMAT,
            "next_cycle": self.next_cycle,
            "start_token": self.start_token,
            "piece": self.piece,
            "order_position": self.order_position,
            "sources": {name: _source_json(source) for name, source in sorted(self.sources.items())},
        }

    def digest(self) -> str:
        """Hex sha256 of the canonical JSON."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return sha256_json(self.to_json())

    @staticmethod
    def from_json(value: dict[str, Any]) -> PlanState:
        """Inverse of `to_json`."""
        return PlanState(
            next_cycle=value["next_cycle"],
            start_token=value["start_token"],
            piece=value["piece"],
            order_position=value["order_position"],
            sources={name: _source_state(source) for name, source in value["sources"].items()},
        )


def range_json(docs: DocRange) -> dict[str, Any]:
    """A document range as the manifest and the state write it."""
    return {
        "stratum": docs.stratum,
        "path": docs.path,
        "doc_from": docs.doc_from,
        "token_from": docs.token_from,
        "doc_to": docs.doc_to,
    }


def ranges(values: Sequence[dict[str, Any]]) -> tuple[DocRange, ...]:
    """Document ranges of a JSON list; other keys beside theirs are allowed. Pieces begin at token 0."""
    return tuple(
        DocRange(
            stratum=value["stratum"],
            path=value["path"],
            doc_from=value["doc_from"],
            token_from=value.get("token_from", 0),
            doc_to=value["doc_to"],
        )
        for value in values
    )


def _source_json(source: SourceState) -> dict[str, Any]:
    return {
        "head": [range_json(docs) for docs in source.head],
        "strata": {
            name: {
                "next_file": stratum.next_file,
                "debt": stratum.debt,
                "open": [{"path": file.path, "next_doc": file.next_doc} for file in stratum.open],
            }
            for name, stratum in sorted(source.strata.items())
        },
    }


def _source_state(value: dict[str, Any]) -> SourceState:
    return SourceState(
        head=ranges(value["head"]),
        strata={
            name: StratumState(
                next_file=stratum["next_file"],
                debt=stratum["debt"],
                open=tuple(OpenFile(path=f["path"], next_doc=f["next_doc"]) for f in stratum["open"]),
            )
            for name, stratum in value["strata"].items()
        },
    )
