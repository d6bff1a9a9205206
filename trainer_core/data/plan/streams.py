"""A source's stream in a cycle: which documents it takes, in which order, and what it leaves. Pure.

A stream is the head that the cycle before left, then pieces segment by segment, every segment with every
stratum at its share within a document. It holds one token more than its rows train: the last target is the
context of the next head's first row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from trainer_core.data.plan.cuts import cut_segments
from trainer_core.data.plan.order import permutation
from trainer_core.data.plan.state import DocEnds, DocRange, PlanState, SourceState, StratumState
from trainer_core.data.plan.strata import StratumFiles, StratumTake, Untokenized, UsedUp
from trainer_core.data.sources import DataLine, SourceSpec

FileCounts = Callable[[str, str], DocEnds | None]
"""Document ends of a tokenized file by source and path; None while it is not tokenized."""

Estimate = Callable[[str, str], int]
"""Tokens expected in a file, by source and path."""


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """A source's stream in a cycle."""

    head: tuple[DocRange, ...]
    """What earlier cycles left; the first token was a target already, except at the line's beginning."""
    pieces: tuple[tuple[DocRange, ...], ...]
    """New documents in stream order, by segment."""
    head_out: tuple[DocRange, ...]
    """What the stream leaves, from its last trained token on."""


def file_order(line: DataLine, source: str, stratum: str) -> tuple[str, ...]:
    """Paths of a stratum in the seeded order in which cycles open them."""
    return line.source(source).file_order(line.seed, stratum)


def plan_stream(
    line: DataLine,
    spec: SourceSpec,
    state: PlanState,
    shares: Sequence[int],
    counts: FileCounts,
    estimate: Estimate,
) -> tuple[SourcePlan, SourceState] | None:
    """A source's stream and its state afterwards; None when the cycle has no row of it.

    `shares` are the tokens that the source's rows train up to the end of each segment. Raises Untokenized or
    UsedUp.
    """
    cycle, name = state.next_cycle, spec.name
    trained = shares[-1]
    if not trained:
        return None
    before = state.sources.get(name, SourceState())
    known = _known(name, counts, [docs.path for docs in before.head])
    head_tokens = sum(docs.tokens(known(docs.path)) for docs in before.head)
    takes = _take(line, spec, before, counts, estimate, cycle)
    # The very first token of a source is context only: one more token than targets.
    credit = trained if before.head else trained + 1
    debts = _fill(takes, credit, trained + 1 - head_tokens, f"cycle {cycle}, source {name}")
    segments = cut_segments([take.ranges() for take in takes], known, shares)
    pieces = tuple(_shuffled(line, docs, cycle, number, name) for number, docs in enumerate(segments))
    held = head_tokens + sum(take.taken_tokens for take in takes)
    head_out = _last([before.head, *pieces], known, held - trained)
    strata = {take.files.name: take.state(debt) for take, debt in zip(takes, debts, strict=True)}
    return (
        SourcePlan(head=before.head, pieces=pieces, head_out=head_out),
        SourceState(strata=strata, head=head_out),
    )


def _known(name: str, counts: FileCounts, paths: Sequence[str]) -> Callable[[str], DocEnds]:
    """Counts that must be there; asks for the named files when they are not."""
    missing = [path for path in dict.fromkeys(paths) if counts(name, path) is None]
    if missing:
        raise Untokenized(missing)

    def known(path: str) -> DocEnds:
        ends = counts(name, path)
        assert ends is not None, path
        return ends

    return known


def _shuffled(
    line: DataLine, docs: list[DocRange], cycle: int, segment: int, name: str
) -> tuple[DocRange, ...]:
    """A segment's documents in their seeded order."""
    if len(docs) < 2:
        return tuple(docs)
    order = permutation(line.seed, "pieces", cycle, segment, name, n=len(docs))
    return tuple(docs[index] for index in order.tolist())


def _take(
    line: DataLine, spec: SourceSpec, before: SourceState, counts: FileCounts, estimate: Estimate, cycle: int
) -> list[StratumTake]:
    """Open the strata's files where they stand."""
    missing: list[str] = []
    takes = []
    for stratum in spec.strata:
        try:
            takes.append(
                StratumTake(
                    StratumFiles(
                        name=stratum.name,
                        weight=stratum.tokens,
                        files=spec.file_order(line.seed, stratum.name),
                        estimate=partial(estimate, spec.name),
                    ),
                    before.strata.get(stratum.name, StratumState()),
                    partial(counts, spec.name),
                    f"cycle {cycle}, source {spec.name}, stratum {stratum.name}",
                )
            )
        except Untokenized as wanted:
            missing += wanted.paths
    if missing:
        raise Untokenized(missing)
    return takes


def _fill(takes: Sequence[StratumTake], credit: int, demand: int, where: str) -> list[int]:
    """Take each stratum's exact share to the nearest document, then top up to `demand`; the new debts."""
    total = sum(take.files.weight for take in takes)
    missing: list[str] = []
    short_of: list[str] = []
    for take in takes:
        try:
            take.take(take.owed(credit) // total)
        except Untokenized as wanted:
            missing += wanted.paths
        except UsedUp as ended:
            short_of += ended.problems
    if short_of:
        raise UsedUp(short_of)
    if missing:
        raise Untokenized(missing)

    def debt(take: StratumTake) -> int:
        return take.owed(credit) - take.taken_tokens * total

    while (short := demand - sum(take.taken_tokens for take in takes)) > 0:
        by_debt = sorted(takes, key=lambda take: (-debt(take), take.files.name))
        if not any(take.take_document() for take in by_debt):
            raise UsedUp([f"{where}: used up, {short:,} tokens short"])
    return [debt(take) for take in takes]


def _last(
    stream: Sequence[Sequence[DocRange]], counts: Callable[[str], DocEnds], wanted: int
) -> tuple[DocRange, ...]:
    """The last `wanted` tokens of a stream."""
    left: list[DocRange] = []
    for docs in (entry for entries in reversed(stream) for entry in reversed(entries)):
        if wanted <= 0:
            break
        ends = counts(docs.path)
        tokens = docs.tokens(ends)
        if not tokens:
            continue
        position = docs.start(ends) + max(0, tokens - wanted)
        doc = int(ends.searchsorted(position, side="right"))
        first = int(ends[doc - 1]) if doc else 0
        left.append(docs._replace(doc_from=doc, token_from=position - first))
        wanted -= tokens
    return tuple(reversed(left))
