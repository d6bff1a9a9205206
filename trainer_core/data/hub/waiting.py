"""How long nstrain waits for a hub: the times, and a wait that is announced, can be left, and starts over.

Owns no request and no file of a source. Invariant: `hub_waiting` is written once when the first of several
transfers of a data line has waited too long, `hub_back` once when the last of those that did is through.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer_core.errors import Leaving
from trainer_core.line.events import record_event

Say = Callable[[str], None]


def say_nothing(message: str) -> None:
    """For callers that nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """The times of a download."""

    first_seconds: float = 5.0
    """Wait after the first failure; it doubles with each one that brought no byte."""
    longest_seconds: float = 600.0
    """Longest wait that we choose; the hub may ask for a longer one."""
    jitter: float = 0.25
    """Up to this part of a wait is added at random, so that many hosts do not come back together."""
    watchdog_seconds: float = 120.0
    """Without a byte for so long a transfer is cut off; after waiting for so long it is announced."""
    poll_seconds: float = 0.2
    """Time between two looks at a transfer."""
    wrong_tries: int = 3
    """Downloads that may end with other bytes than the pinned ones before the file is refused."""


def delay(patience: Patience, num_failures: int, retry_after: float | None, chance: float) -> float:
    """Seconds to wait after so many earlier failures; `chance` is a random number below 1.

    Never less than the hub asks for, and never more than the longest wait unless it does.
    """
    chosen = min(patience.longest_seconds, patience.first_seconds * 2.0 ** min(num_failures, 32))
    return max(chosen, retry_after or 0.0) * (1.0 + patience.jitter * chance)


_waiting: dict[Path, set[Wait]] = {}
_lock = threading.Lock()


class Wait:
    """The waiting of one transfer, from its first failure until it is through."""

    def __init__(
        self, what: str, *, patience: Patience, events: Path | None, leaving: threading.Event | None, say: Say
    ) -> None:
        self._what = what
        self._patience = patience
        self._events = events
        self._leaving = leaving or threading.Event()
        self._say = say
        self._failures = 0
        self._since = 0.0
        self._announced = False

    def __enter__(self) -> Wait:
        return self

    def __exit__(self, *error: object) -> None:
        """Nobody waits any more, for whatever reason."""
        if self._announced and self._events is not None:
            with _lock:
                _waiting[self._events].discard(self)

    def check_leaving(self) -> None:
        """Raises Leaving when the process was asked to end."""
        if self._leaving.is_set():
            raise Leaving(f"{self._what}: left unfinished on request; it goes on at the next start")

    def after(self, reason: str, *, retry_after: float | None = None, progress: bool = False) -> None:
        """Wait after a failure. `progress`: bytes came before it, so the waits start over."""
        if progress:
            self.over()
        now = time.monotonic()
        self._since = self._since or now
        seconds = delay(self._patience, self._failures, retry_after, random.random())
        self._failures += 1
        self._say(f"{self._what}: {reason}; tried again in {seconds:.0f} s")
        end = now + seconds
        while (left := end - time.monotonic()) > 0:
            unannounced = self._since + self._patience.watchdog_seconds - time.monotonic()
            if unannounced <= 0:
                self._announce(reason)
                unannounced = left
            self._leaving.wait(min(left, unannounced))
            self.check_leaving()

    def over(self) -> None:
        """The hub answers; a later failure begins a new wait."""
        announced, self._announced = self._announced, False
        seconds, self._since, self._failures = time.monotonic() - self._since, 0.0, 0
        if not announced:
            return
        message = f"{self._what}: the hub answers again, after {seconds:.0f} s"
        self._say(message)
        if self._events is None:
            return
        with _lock:
            others = _waiting[self._events]
            others.discard(self)
            if not others:
                record_event(self._events, "hub_back", message, seconds=round(seconds, 3))

    def pause(self, seconds: float) -> None:
        """Wait for something else than the hub."""
        self._leaving.wait(seconds)
        self.check_leaving()

    def _announce(self, reason: str) -> None:
        if self._announced:
            return
        self._announced = True
        message = f"{self._what}: waits for the hub ({reason})"
        self._say(message)
        if self._events is None:
            return
        with _lock:
            others = _waiting.setdefault(self._events, set())
            if not others:
                record_event(self._events, "hub_waiting", message, reason=reason)
            others.add(self)
