"""The plan of a cycle: a pure function of the data line, its consumer, the state before and token counts.

A plan says how many rows of which length come in which order (whole updates only, one part per row length),
which documents make up each source's stream, and where the planner stands afterwards.

Nothing here reads or writes a file: the same inputs give the same plan on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.plan.parts import PartRows, cycle_parts, spread_segments
from trainer_core.data.plan.row_order import PartOrder, part_order, segment_bounds
from trainer_core.data.plan.state import PlanState
from trainer_core.data.plan.strata import Untokenized, UsedUp
from trainer_core.data.plan.streams import Estimate, FileCounts, SourcePlan, plan_stream
from trainer_core.data.sources import DataLine, Piece
from trainer_core.errors import DataUsedUp, Refused

if TYPE_CHECKING:  # the consumer's record asks the state how much is planned
    from trainer_core.data.plan.consumer import Consumer


@dataclass(frozen=True, kw_only=True)
class PartPlan(PartRows):
    """A part of a cycle: rows of one length, and their order."""

    order_start: int
    """Rows of the piece's source sequence before the part."""
    order: PartOrder
    """Which row comes when."""


@dataclass(frozen=True, kw_only=True)
class CyclePlan:
    """All of a cycle."""

    cycle: int
    """Cycle, counted from 0."""
    piece: int
    """Index of the recipe piece."""
    parts: tuple[PartPlan, ...]
    """Runs of rows of one length."""
    sources: dict[str, SourcePlan]
    """Streams of the sources that have rows in this cycle."""
    before: PlanState
    """State that the plan started from."""
    after: PlanState
    """State after it."""


class FilesNeeded(Exception):
    """These files must be tokenized before the cycle can be planned."""

    def __init__(self, files: Sequence[tuple[str, str]]) -> None:
        super().__init__(*files)
        self.files = tuple(files)
        """(source, path), in the order in which they are wanted."""


def plan_parts(line: DataLine, consumer: Consumer, state: PlanState) -> tuple[PartPlan, ...]:
    """Rows of the next cycle: as many whole updates of the batch in force as its tokens hold."""
    cycle = state.next_cycle
    index, piece = _piece(line, cycle)
    position = state.order_position if index == state.piece else 0
    parts = whole_updates(line, consumer, cycle, state.start_token)
    planned = []
    for number, (part, segments) in enumerate(zip(parts, spread_segments(parts, line.segments), strict=True)):
        order = part_order(
            piece,
            seed=line.seed,
            cycle=cycle,
            part=number,
            order_start=position,
            bounds=segment_bounds(part.num_rows, segments),
        )
        planned.append(PartPlan(**vars(part), order_start=position, order=order))
        position += part.num_rows
    return tuple(planned)


def whole_updates(line: DataLine, consumer: Consumer, cycle: int, start_token: int) -> tuple[PartRows, ...]:
    """Parts of a cycle that begins at a token count. Raises Refused when it holds no whole update."""
    parts = cycle_parts(consumer, start_token, line.cycle_tokens)
    if not parts:
        raise Refused(
            f"cycle {cycle}: {line.cycle_tokens:,} tokens hold no whole update of "
            f"{consumer.batch(start_token):,} tokens in rows of {consumer.row_length(start_token):,}; make a "
            "data line with larger cycles or a training line with smaller updates"
        )
    return parts


def plan_cycle(
    line: DataLine, consumer: Consumer, state: PlanState, counts: FileCounts, estimate: Estimate
) -> CyclePlan:
    """Plan the state's next cycle. Raises FilesNeeded (all sources at once) or DataUsedUp."""
    parts = plan_parts(line, consumer, state)
    index, _ = _piece(line, state.next_cycle)
    sources: dict[str, SourcePlan] = {}
    after = dict(state.sources)
    missing: list[tuple[str, str]] = []
    short: list[str] = []
    trained = _segment_tokens(parts).T.tolist()
    for name, segment_ends in zip(parts[0].order.names, trained, strict=True):
        try:
            planned = plan_stream(line, line.source(name), state, segment_ends, counts, estimate)
        except Untokenized as wanted:
            missing += [(name, path) for path in wanted.paths]
            continue
        except UsedUp as ended:
            short += ended.problems
            continue
        if planned is not None:
            sources[name], after[name] = planned
    if short:
        raise DataUsedUp("\n".join(short) + "\nevery text is trained once: " + _way_out(state.next_cycle))
    if missing:
        raise FilesNeeded(missing)
    last = parts[-1]
    return CyclePlan(
        cycle=state.next_cycle,
        piece=index,
        parts=parts,
        sources=sources,
        before=state,
        after=PlanState(
            next_cycle=state.next_cycle + 1,
            start_token=last.start_token + last.tokens,
            piece=index,
            order_position=last.order_start + last.num_rows,
            sources=after,
        ),
    )


def _way_out(cycle: int) -> str:
    """What is left when a cycle cannot be filled; what a line has from its first cycle on is pinned."""
    if cycle == 0:
        return "make a new data line with a smaller --cycle-tokens, a smaller share of it, or more text"
    return (
        "append a recipe piece from this cycle on that does without it (`nstrain data append`), or go on "
        "with a new data line that has more files"
    )


def _piece(line: DataLine, cycle: int) -> tuple[int, Piece]:
    piece = line.piece_at(cycle)
    return line.pieces.index(piece), piece


def _segment_tokens(parts: Sequence[PartPlan]) -> NDArray[np.int64]:
    """Tokens that each source's rows train up to the end of each segment of the cycle."""
    return np.cumsum(np.concatenate([part.order.counts * part.row_length for part in parts]), axis=0)
