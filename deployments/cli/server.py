"""`nstrain up`, `down` and `doctor`: the server, the workers and the state of this host."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter


def _say(message: str) -> None:
    print(message, flush=True)


def up(
    *,
    database: str | None = None,
    foreground: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Start the Prefect server, the work pools, the deployments and the workers of this host.

    Safe to repeat: what runs already goes on. A server that nstrain did not start is never touched.

    Parameters
    ----------
    database
        Database URL of the server, for example postgresql+asyncpg://user@host/name; SQLite without it. Kept
        for later starts.
    foreground
        Stay, start again what ends, and take everything down on SIGTERM or Ctrl-C (for a service manager).
    """
    from deployments.down import down as take_down
    from deployments.home import Home
    from deployments.up import stay
    from deployments.up import up as bring_up

    home = Home.default()
    started = time.monotonic()
    record = bring_up(home, database=database, say=_say)
    _say(f"ready after {time.monotonic() - started:.0f} s: {record.ui} (logs in {home.logs})")
    if not foreground:
        return 0
    try:
        stay(home, database=database, say=_say)
    finally:
        gone = take_down(home, wait_seconds=120.0, say=_say)
    return 0 if gone else 1


def down(*, wait_seconds: float = 120.0) -> int:
    """Stop running lines with a checkpoint, then end the workers and the server that `nstrain up` started.

    Parameters
    ----------
    wait_seconds
        Longest wait for a line's checkpoint.
    """
    from deployments.down import down as take_down
    from deployments.home import Home

    return 0 if take_down(Home.default(), wait_seconds=wait_seconds, say=_say) else 1


def doctor(*, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List what is missing or too old on this host; exit code 0 when a line could run here, else 20.

    Parameters
    ----------
    json
        Print JSON.
    """
    from deployments.doctor import report

    return report(as_json=json)
