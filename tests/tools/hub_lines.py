"""What tests of downloads share: short times, and files pinned as the hub lists them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.tools.hub import Hub
from trainer_core.data.hub.api import list_files
from trainer_core.data.hub.waiting import Patience
from trainer_core.data.sources import SourceFile, load_data_line
from trainer_core.line.files import write_json
from trainer_core.line.paths import DataPaths

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


def on_hub(hub: Hub, work: Path) -> dict[str, str]:
    """Let a data line over folders be one over repositories of `hub` with the same files; the commits."""
    line = load_data_line(work)
    sources, commits = [], {}
    for spec in line.sources:
        assert spec.folder is not None
        repo = f"tests/{spec.name}"
        files = {file.path: (Path(spec.folder) / file.path).read_bytes() for file in spec.files}
        commits[spec.name] = hub.commit(repo, files)
        found = pinned_files(repo, commits[spec.name])
        sources.append(
            replace(
                spec,
                folder=None,
                repo=repo,
                revision="main",
                commit=commits[spec.name],
                files=tuple(replace(found[file.path], stratum=file.stratum) for file in spec.files),
            )
        )
    write_json(DataPaths(work).data, replace(line, sources=tuple(sources)).to_json())
    return commits
