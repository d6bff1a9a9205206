"""How long to wait before the next start of a trainer, and when to give up. Pure numbers; no clock.

Failures are counted since the line last moved forward, so a line that loses an hour each week is never given
up, and one that dies five times at the same place is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainer_core.line.config import Guards


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Times and limits of supervision; the defaults are for a line that runs for weeks."""

    backoff_seconds: float = 10.0
    """Wait after the first failure; doubled by each further failure without progress."""
    backoff_limit_seconds: float = 600.0
    """Longest wait between two starts."""
    max_failures: int = 5
    """Failures without progress after which the line is given up as stuck."""
    gpu_poll_seconds: float = 60.0
    """Wait after a trainer that found other programs on the GPU."""
    poll_seconds: float = 0.2
    """How often the child, its heartbeat and stop requests are looked at."""
    term_seconds: float = 30.0
    """Time a silent trainer has between SIGTERM and SIGKILL."""
    kill_seconds: float = 60.0
    """Time a process has to disappear after SIGKILL before it counts as unkillable."""
    orphan_seconds: float = 1800.0
    """Longest wait for a trainer whose supervisor died to finish its checkpoint."""
    notice_seconds: float = 300.0
    """How often a long wait is reported again."""

    def guarded(self, guards: Guards) -> Policy:
        """This policy with the limits that the line's own run.json sets."""
        return replace(self, backoff_seconds=guards.backoff_seconds, max_failures=guards.max_failures)

    def delay(self, failures: int) -> float:
        """Seconds to wait before the next start after this many failures without progress."""
        assert failures >= 1
        return float(min(self.backoff_seconds * 2 ** min(failures - 1, 62), self.backoff_limit_seconds))


def count_failures(previous: int, *, moved: bool) -> int:
    """Failures without progress after one more failure; `moved`: whether the line got further before it."""
    return 1 if moved else previous + 1
