"""What tests of downloads share: short times, and files pinned as the hub lists them."""

from __future__ import annotations

from trainer_core.data.hub import list_files
from trainer_core.data.hub_waiting import Patience
from trainer_core.data.sources import SourceFile

QUICK = Patience(first_seconds=0.01, longest_seconds=0.05, watchdog_seconds=60.0, poll_seconds=0.01)
"""Waits of milliseconds; nothing counts as stalled, however busy this machine is."""
ALERT = Patience(first_seconds=0.01, longest_seconds=0.05, watchdog_seconds=0.5, poll_seconds=0.01)
"""The same, with a watchdog that a test can wait for."""


def pinned_files(repo: str, commit: str) -> dict[str, SourceFile]:
    """The files of a commit by path, as a data line pins them."""
    return {
        file.path: SourceFile(path=file.path, size=file.size, digest=file.digest, stratum="all")
        for file in list_files(repo, commit, patience=QUICK)
    }
