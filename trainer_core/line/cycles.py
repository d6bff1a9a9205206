"""What a line does next with its cycles: download, tokenize, train, delete.

`next_actions` is a pure function of facts (read by `trainer_core.ops.facts`); the inline driver and the trunk
flow both do what it says, so they cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LineFacts:
    """What the directories of a line and of its data line say about its cycles."""

    current: int
    """First cycle not yet trained and checkpointed."""
    target: int | None
    """Train cycles 0 .. target-1, or None for no such limit."""
    end_tokens: int | None
    """Tokens at which the schedule ends, or None."""
    tokens: int
    """Tokens of the newest checkpoint."""
    published: frozenset[int]
    """Cycles whose manifest and shards are there."""
    downloaded: frozenset[int]
    """Cycles whose input files were fetched and checked."""
    half_deleted: frozenset[int] = frozenset()
    """Cycles whose deletion was interrupted."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """Tokens trained by the end of the planned cycles from the current one on."""
    ahead: int = 1
    """Cycles to prepare beyond the current one."""
    keep_cycles: int = 0
    """Trained cycles whose shards stay."""

    @property
    def finished(self) -> bool:
        """Whether the schedule has ended."""
        return self.end_tokens is not None and self.tokens >= self.end_tokens

    def needed(self, cycle: int) -> bool:
        """Whether the line will train (a part of) this cycle, as far as is known before it is planned."""
        if self.finished or (self.target is not None and cycle >= self.target):
            return False
        if self.end_tokens is None or cycle == self.current:
            return True
        start = self.ends.get(cycle - 1)
        return start is not None and start < self.end_tokens


@dataclass(frozen=True)
class Download:
    """Fetch and check the input files of a cycle."""

    cycle: int


@dataclass(frozen=True)
class Tokenize:
    """Tokenize, plan and publish a cycle."""

    cycle: int


@dataclass(frozen=True)
class Train:
    """Train a published cycle to its end (or to the end of the schedule)."""

    cycle: int


@dataclass(frozen=True)
class Delete:
    """Remove the shards of a trained cycle."""

    cycle: int


Action = Download | Tokenize | Train | Delete


def token_span(parts: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Tokens that the line has trained before and after a planned cycle, from its manifest's `parts`."""
    last = parts[-1]
    return parts[0]["start_token"], last["start_token"] + sum(last["rows"].values()) * last["row_length"]


def next_actions(facts: LineFacts) -> list[Action]:
    """Everything that may be done now, most urgent first; an empty list means the line is done.

    Cycles are planned strictly in order, so at most one is being prepared. A driver that has all of it under
    way waits.
    """
    keep_from = facts.current - facts.keep_cycles
    actions: list[Action] = [
        Delete(cycle)
        for cycle in sorted(facts.published | facts.half_deleted)
        if cycle < keep_from or facts.finished or cycle in facts.half_deleted
    ]
    if not facts.needed(facts.current):
        return actions
    if facts.current in facts.published:
        actions.append(Train(facts.current))
    for cycle in range(facts.current, facts.current + facts.ahead + 1):
        if not facts.needed(cycle):
            break
        if cycle not in facts.published:
            actions.append(Tokenize(cycle) if cycle in facts.downloaded else Download(cycle))
            break
    return actions
