"""The order of a cycle's rows: which source comes next, and every seeded permutation of the data line.

The source sequence is a quota sequence (Tijdeman 1980, earliest deadline first) over a recipe piece's integer
shares. Every prefix holds each source within 1 - 1/(2S-2) of its share, so every run of rows, wherever it
starts and however long it is, holds each within 2 - 1/(S-1) < 2. Integers only: the same on every machine.

The sequence repeats after the sum of the shares reduced by their greatest common divisor and runs on over the
cycles of a piece. Nothing here reads a file.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from json import JSONEncoder
from math import gcd
from threading import Lock, local

import numpy as np
from numpy.typing import NDArray

from trainer_core.errors import Refused

MAX_PERIOD = 50_000_000
"""Longest period of a source sequence in rows; shares with more digits would cost minutes to walk."""

_BLOCK = 1 << 13
"""Rows walked at once."""


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
    walked = _walker(parts).first(min(period, first + count))
    if first + count <= period:
        return walked[first : first + count].copy()
    return np.resize(np.roll(walked[:period], -first), count)


@lru_cache(maxsize=2)
def _walker(shares: tuple[int, ...]) -> _Walker:
    return _Walker(shares)


class _Walker:
    """The sequence of some shares from its first row on, as far as anyone asked.

    With N = sum of shares, n = a source's share and D = 2S-2, its job k may run at times
    ceil(N(kD+1)/(Dn)) .. floor(N(kD+D-1)/(Dn)) + 1, counted from 1; of the released jobs the one with the
    earliest deadline runs, among equals that of the first source. Times come from whole arrays; the loop over
    the rows only keeps a sorted list of a few released jobs.
    """

    def __init__(self, shares: tuple[int, ...]) -> None:
        self._shares = shares
        self._used = [index for index, share in enumerate(shares) if share]
        self._next_job = dict.fromkeys(self._used, 0)
        self._released: list[int] = []
        """Keys of the released jobs, the next one last: -(deadline * sources + source)."""
        self._blocks: list[NDArray[np.uint16]] = []
        self._done = 0
        self._lock = Lock()

    def first(self, count: int) -> NDArray[np.uint16]:
        """The first `count` rows, or more."""
        with self._lock:
            if len(self._used) == 1:
                return np.full(count, self._used[0], dtype=np.uint16)
            period = sum(self._shares)
            while self._done < count:
                end = min(self._done + _BLOCK, period)
                self._blocks.append(self._walk(self._done, end))
                self._done = end
            if len(self._blocks) > 1:
                self._blocks = [np.concatenate(self._blocks)]
            return self._blocks[0] if self._blocks else np.empty(0, dtype=np.uint16)

    def _walk(self, start: int, end: int) -> NDArray[np.uint16]:
        """Rows start .. end-1."""
        releases, keys = self._jobs(start, end)
        order = np.argsort(releases, kind="stable")
        arriving = iter(keys[order].tolist())
        released, chosen = self._released, list[int]()
        insert, take, choose, following = insort, released.pop, chosen.append, arriving.__next__
        for number in np.bincount(releases - start - 1, minlength=end - start).tolist():
            if number == 1:
                insert(released, following())
            elif number:
                for key in islice(arriving, number):
                    insert(released, key)
            choose(take())
        ran = -np.array(chosen, dtype=np.int64)
        deadlines, sources = np.divmod(ran, len(self._shares))
        assert np.all(deadlines > np.arange(start, end)), "Tijdeman's theorem: a feasible schedule exists"
        return sources.astype(np.uint16)

    def _jobs(self, start: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Release times and keys of the jobs that are released at times start+1 .. end, by source."""
        total, spread = sum(self._shares), 2 * len(self._used) - 2
        releases, keys = [], []
        for source in self._used:
            job, scaled = self._next_job[source], spread * self._shares[source]
            most = (end - start) * self._shares[source] // total + 3
            # Quotients of the first job in Python's integers, so that the rest fits into 64 bits.
            later = np.arange(most, dtype=np.int64) * (total * spread)
            quotient, rest = divmod(total * (job * spread + 1), scaled)
            release = quotient - (-(rest + later)) // scaled
            quotient, rest = divmod(total * (job * spread + spread - 1), scaled)
            deadline = quotient + (rest + later) // scaled + 1
            number = int(np.searchsorted(release, end, side="right"))
            assert number < most, (source, number)
            self._next_job[source] = job + number
            releases.append(release[:number])
            keys.append(-(deadline[:number] * len(self._shares) + source))
        return np.concatenate(releases), np.concatenate(keys)


class _Bits(local):
    """One Philox generator per thread, set to any key at a tenth of what a new one costs."""

    def __init__(self) -> None:
        self._generator = np.random.Philox(key=0)
        self._state = self._generator.state
        self._begin = np.zeros(4, dtype=np.uint64)

    def raw(self, key: bytes, count: int) -> NDArray[np.uint64]:
        """The first raw numbers of the generator with a 128-bit key."""
        self._state["state"] = {"counter": self._begin, "key": np.frombuffer(key, dtype="<u8")}
        self._generator.state = self._state
        bits: NDArray[np.uint64] = self._generator.random_raw(count)
        return bits


_bits = _Bits()
_encode = JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def permutation(*key: str | int, n: int) -> NDArray[np.int64]:
    """A permutation of 0 .. n-1 that depends on the key alone.

    Raw Philox bits and a stable sort: numpy promises the bits of the stream, not Generator.permutation's.
    """
    digest = hashlib.blake2b(_encode(key).encode("utf-8"), digest_size=16).digest()
    return _bits.raw(digest, n).argsort(kind="stable").astype(np.int64, copy=False)


def window_counts(sequence: NDArray[np.uint16], num_sources: int) -> NDArray[np.int64]:
    """How often each source occurs in a piece of the sequence."""
    return np.bincount(sequence, minlength=num_sources).astype(np.int64)
