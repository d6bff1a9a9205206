"""Cuts the documents that a source gives to a cycle into segments, each with every stratum at its share.

A stratum is cut at the document ends nearest to its cumulative targets, so a segment holds it within a
document. All strata of a source are cut at once: they are laid end to end and searched as one list. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, repeat
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from trainer_core.data.plan.state import DocEnds, DocRange

_STRATUM, _PATH = itemgetter(0), itemgetter(1)
_MAKE = partial(tuple.__new__, DocRange)


def cut_segments(
    strata: Sequence[Sequence[DocRange]], counts: Callable[[str], DocEnds], shares: Sequence[int]
) -> list[list[DocRange]]:
    """The documents of each segment, in the order of strata and files.

    `shares` rise to what the last segment ends with; a stratum of t tokens is cut at t * share / last.
    """
    entries = [entry for ranges in strata for entry in ranges]
    if not entries:
        return [[] for _ in shares]
    ends, first_docs, starts = _laid_out(entries, counts)
    sizes = [len(ranges) for ranges in strata]
    stratum_starts = [starts[number] for number in accumulate(sizes, initial=0)]
    targets = _targets(stratum_starts, shares)
    cuts = _nearest(ends, targets)
    stratum = np.repeat(np.arange(len(strata)), sizes)
    begins = np.unique(np.concatenate([cuts, first_docs]))
    begins = begins[begins < len(ends)]
    entry = np.searchsorted(first_docs, begins, side="right") - 1
    segment = np.searchsorted(cuts, begins, side="right") - stratum[entry] * (len(shares) - 1)
    base = np.array([one.doc_from for one in entries]) - first_docs
    stops = np.append(begins[1:], len(ends))
    first, last = (begins + base[entry]).tolist(), (stops + base[entry]).tolist()
    places: Iterable[tuple[int, int, int, int]] = zip(
        segment.tolist(), entry.tolist(), first, last, strict=True
    )
    places = sorted([*places, *_empty(entries, stratum, targets, starts, len(shares) - 1)])
    where, whose, froms, tos = zip(*places, strict=True)
    ranges = _ranges([entries[number] for number in whose], froms, tos)
    bounds = np.searchsorted(where, np.arange(len(shares) + 1)).tolist()
    return [ranges[start:end] for start, end in pairwise(bounds)]


def _ranges(entries: Sequence[DocRange], froms: Iterable[int], tos: Iterable[int]) -> list[DocRange]:
    """Parts of entries. A plan makes hundreds of thousands: no Python runs for any one of them."""
    columns = zip(map(_STRATUM, entries), map(_PATH, entries), froms, repeat(0), tos)
    return list(map(_MAKE, columns))


def _empty(
    entries: Sequence[DocRange],
    stratum: NDArray[np.int64],
    targets: NDArray[np.int64],
    starts: Sequence[int],
    cuts: int,
) -> Iterator[tuple[int, int, int, int]]:
    """Files without a document, in the segment where their turn comes."""
    for number, one in enumerate(entries):
        if one.doc_from == one.doc_to:
            own = targets[stratum[number] * cuts : (stratum[number] + 1) * cuts]
            yield int(own.searchsorted(starts[number])), number, one.doc_from, one.doc_to


def _laid_out(
    entries: Sequence[DocRange], counts: Callable[[str], DocEnds]
) -> tuple[DocEnds, NDArray[np.int64], list[int]]:
    """Ends of all documents laid end to end; documents before each entry; tokens before each, and in all."""
    ends: list[DocEnds] = []
    starts, position = [], 0
    for entry in entries:
        known = counts(entry.path)
        start = entry.start(known)
        ends.append(known[entry.doc_from : entry.doc_to] + (position - start))
        starts.append(position)
        position += entry.end(known) - start
    docs = np.array([len(part) for part in ends], dtype=np.int64)
    before: NDArray[np.int64] = np.cumsum(docs) - docs
    return np.concatenate(ends), before, [*starts, position]


def _targets(starts: Sequence[int], shares: Sequence[int]) -> NDArray[np.int64]:
    """Where each stratum is cut, one after the other; exact, whatever the size of the numbers."""
    exact = np.array(starts, dtype=np.int64 if starts[-1] * shares[-1] < 1 << 62 else object)
    inner = np.multiply.outer(np.diff(exact), np.array(shares[:-1], dtype=exact.dtype)) // shares[-1]
    targets: NDArray[np.int64] = (inner + exact[:-1, None]).astype(np.int64).ravel()
    return targets


def _nearest(ends: DocEnds, targets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of documents whose end lies nearest to each target; the fewer of two."""
    if not len(ends):
        return np.zeros(len(targets), dtype=np.int64)
    upper = ends.searchsorted(targets)
    below = np.where(upper > 0, ends[upper - 1], 0)
    nearest: NDArray[np.int64] = upper + (targets - below > ends[upper] - targets)
    return nearest
