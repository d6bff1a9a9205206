"""The order of a cycle's rows: which source comes next, and every seeded permutation of the data line.

The source sequence is a quota sequence (Tijdeman 1980, earliest deadline first) over a recipe piece's integer
shares. Every prefix holds each source within 1 - 1/(2S-2) of its share, so every run of rows, wherever it
starts and however long it is, holds each within 2 - 1/(S-1) < 2. Integers only: the same on every machine.

The sequence repeats after the sum of the shares reduced by their greatest common divisor and runs on over the
cycles of a piece. Nothing here reads a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import gcd

import numpy as np
from numpy.typing import NDArray

from trainer_core.errors import Refused
from trainer_core.line.files import canonical_json

MAX_PERIOD = 50_000_000
"""Longest period of a source sequence in rows; shares with more digits would cost minutes to walk."""


_SHORT = 1_000_000


def reduced(shares: Sequence[int]) -> tuple[int, ...]:
    """The shares divided by their greatest common divisor; their sum is the period of the sequence."""
    if not shares or any(share < 0 for share in shares) or not any(shares):
        raise Refused(f"shares {list(shares)}: expected integers of at least 0, at least one above 0")
    divisor = gcd(*shares)
    return tuple(share // divisor for share in shares)


def quota_sequence(shares: Sequence[int], start: int, count: int) -> NDArray[np.uint16]:
    """Source indices of rows start .. start+count-1 of the endless sequence over integer shares."""
    assert start >= 0 and count >= 0, (start, count)
    parts = reduced(shares)
    period = sum(parts)
    if period > MAX_PERIOD:
        raise Refused(
            f"shares {list(shares)}: they sum to {period:,} after reduction, more than {MAX_PERIOD:,}; "
            "write shares with fewer digits"
        )
    first = start % period
    walked = _walk(parts, period if period <= _SHORT else min(period, first + count))
    if first + count <= period:
        return walked[first : first + count].copy()
    return np.resize(np.roll(walked, -first), count)


@lru_cache(maxsize=2)
def _walk(shares: tuple[int, ...], count: int) -> NDArray[np.uint16]:
    """The first `count` elements of the sequence.

    With N = sum of shares, n = a source's share and D = 2S-2, its job k may run at times
    ceil(N(kD+1)/(Dn)) .. floor(N(kD+D-1)/(Dn)) + 1, counted from 1; the released job with the earliest
    deadline runs. A source's jobs are released one after the other, so one entry per source suffices.
    """
    sources = [index for index, share in enumerate(shares) if share]
    if len(sources) == 1:
        return np.full(count, sources[0], dtype=np.uint16)
    total, spread = sum(shares), 2 * len(sources) - 2
    result = np.empty(count, dtype=np.uint16)
    step = total * spread
    scaled = {source: spread * shares[source] for source in sources}
    waiting = [(-(-total // scaled[source]), source, 0) for source in sources]
    heapify(waiting)
    released: list[tuple[int, int, int]] = []
    for time in range(1, count + 1):
        while waiting and waiting[0][0] <= time:
            _, source, base = heappop(waiting)
            deadline = (base + step - total) // scaled[source] + 1
            heappush(released, (deadline, source, base))
        deadline, source, base = heappop(released)
        assert deadline >= time, "Tijdeman's theorem: a feasible schedule exists"
        result[time - 1] = source
        base += step
        heappush(waiting, (-(-(base + total) // scaled[source]), source, base))
    return result


def key_bits(*key: str | int) -> int:
    """A 128-bit number made of a key's parts, the same on every machine and version."""
    return int.from_bytes(hashlib.blake2b(canonical_json(list(key)), digest_size=16).digest(), "little")


def permutation(*key: str | int, n: int) -> NDArray[np.int64]:
    """A permutation of 0 .. n-1 that depends on the key alone.

    Raw Philox bits and a stable sort: numpy promises the bits of the stream, not Generator.permutation's.
    """
    bits = np.random.Philox(key=key_bits(*key)).random_raw(n)
    return np.argsort(bits, kind="stable").astype(np.int64)


def window_counts(sequence: NDArray[np.uint16], num_sources: int) -> NDArray[np.int64]:
    """How often each source occurs in a piece of the sequence."""
    return np.bincount(sequence, minlength=num_sources).astype(np.int64)
