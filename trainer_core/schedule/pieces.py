"""Pieces of an append-only schedule: half-open intervals of the tokens trained, in order, without gaps.

A piece is read at one token count; only the last may be open (`to` None). The past never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar


class Interval(Protocol):
    """Anything with a beginning and an end in tokens."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int | None: ...


@dataclass(frozen=True, kw_only=True)
class ValuePiece:
    """A whole number in force over an interval of tokens."""

    start: int
    """First token."""
    end: int | None
    """Token after the last; None for open."""
    value: int
    """The number."""


Piece = TypeVar("Piece", bound=Interval)


def problems(pieces: Sequence[Interval], key: str) -> list[str]:
    """Everything wrong with a list of pieces, as sentences that name the key and index."""
    found = []
    if not pieces:
        return [f"{key}: expected at least one piece"]
    if pieces[0].start != 0:
        found.append(f"{key}[0].from: the first piece begins at 0 tokens, found {pieces[0].start}")
    for index, piece in enumerate(pieces):
        last = index == len(pieces) - 1
        if piece.end is None and not last:
            found.append(
                f"{key}[{index}].to: this piece is open (null), and only the last may be; give it an end "
                f"first, the `from` of {key}[{index + 1}] ({pieces[index + 1].start})"
            )
        if piece.end is not None and piece.end <= piece.start:
            found.append(f"{key}[{index}]: to ({piece.end}) must lie after from ({piece.start})")
        before = pieces[index - 1].end if index else piece.start
        if before is not None and piece.start != before:
            found.append(f"{key}[{index}].from: expected {before}, the end of the piece before")
    return found


def piece_at(pieces: Sequence[Piece], tokens: int) -> Piece:
    """The piece in force at a token count; past the end of a closed schedule, the last one."""
    for piece in pieces:
        if piece.end is None or tokens < piece.end:
            return piece
    return pieces[-1]


def end_of(pieces: Sequence[Interval]) -> int | None:
    """Tokens at which the schedule ends, or None for a line without an end."""
    return pieces[-1].end


def runs(pieces: Sequence[ValuePiece]) -> tuple[ValuePiece, ...]:
    """The values with equal neighbours joined and the last piece open: past its end it stays in force."""
    joined: list[ValuePiece] = []
    for piece in pieces:
        start = piece.start
        if joined and joined[-1].value == piece.value:
            start = joined.pop().start
        joined.append(ValuePiece(start=start, end=piece.end, value=piece.value))
    return tuple(joined[:-1]) + tuple(replace(piece, end=None) for piece in joined[-1:])
