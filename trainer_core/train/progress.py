"""How far a line is: updates, tokens and the next row. Plain values, moved on by pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainer_core.data.rows.source import Part, Position


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a line between two updates."""

    update: int
    """Updates done, skipped ones included."""
    tokens: int
    """Tokens trained."""
    position: Position
    """The next row."""

    @property
    def at_cycle_start(self) -> bool:
        """Whether the next row is the first of its cycle, i.e. a cycle has just ended (or none has begun)."""
        return self.position.part == 0 and self.position.row == 0

    def after_rows(self, count: int, parts: tuple[Part, ...]) -> Progress:
        """After an update of `count` rows; the end of the last part moves on to the next cycle."""
        position = replace(self.position, row=self.position.row + count)
        part = parts[position.part]
        assert position.row <= part.num_rows, "an update crossed the end of its part"
        if position.row == part.num_rows:
            position = replace(position, part=position.part + 1, row=0)
        if position.part == len(parts):
            position = Position(cycle=position.cycle + 1, part=0, row=0)
        return Progress(
            update=self.update + 1, tokens=self.tokens + count * part.row_length, position=position
        )

    def expected_tokens(self, parts: tuple[Part, ...]) -> int:
        """Tokens that the cycle's manifest gives to this position; must equal `tokens`."""
        part = parts[self.position.part]
        return part.start_token + self.position.row * part.row_length

    def to_dict(self) -> dict[str, Any]:
        """The keys of a checkpoint's state.json."""
        where = self.position
        return {
            "update": self.update,
            "tokens": self.tokens,
            "position": {"cycle": where.cycle, "part": where.part, "row": where.row},
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Progress:
        """Read what `to_dict` wrote."""
        where = state["position"]
        position = Position(cycle=where["cycle"], part=where["part"], row=where["row"])
        return cls(update=state["update"], tokens=state["tokens"], position=position)


START = Progress(update=0, tokens=0, position=Position(cycle=0, part=0, row=0))
"""A new line."""
