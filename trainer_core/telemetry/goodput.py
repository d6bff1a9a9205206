"""Where a trainer's seconds go: each moment has one cause, and the causes of a row sum to its time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Splits the time since the last `take` by cause; what no cause claims is `other`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = clock()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def cause(self, name: str) -> Iterator[None]:
        """Charge the block's time to a cause; causes do not nest."""
        start = self._clock()
        try:
            yield
        finally:
            self._seconds[name] += self._clock() - start

    def take(self) -> dict[str, float]:
        """Seconds by cause since the last call, in microsecond steps."""
        now = self._clock()
        seconds = dict(self._seconds)
        seconds["other"] = max(0.0, now - self._begin - sum(seconds.values()))
        self._begin = now
        self._seconds.clear()
        return {name: round(value, 6) for name, value in seconds.items()}
