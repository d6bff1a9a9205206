"""The source files of a data line, compared with their pins: folders by hash, hubs by what they list.

Downloads nothing: that the pinned commit still exists with files of these sizes and digests is what can be
known without it.
"""

from __future__ import annotations

from trainer_core.data.files.source_files import SourceFiles
from trainer_core.data.hub import api as hub
from trainer_core.data.sources import DataLine, SourceSpec
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths


def source_problems(paths: DataPaths, line: DataLine, spec: SourceSpec) -> list[str]:
    """Everything that differs from the pins of one source."""
    return _folder(paths, line, spec) if spec.repo is None else _hub(spec)


def _folder(paths: DataPaths, line: DataLine, spec: SourceSpec) -> list[str]:
    files = SourceFiles(paths, line)
    problems: list[str] = []
    for file in spec.files:
        try:
            files.fetch(spec.name, file.path)
        except Refused as refused:
            problems += refused.problems
    return problems


def _hub(spec: SourceSpec) -> list[str]:
    assert spec.repo is not None and spec.commit is not None
    try:
        listed = {file.path: file for file in hub.list_files(spec.repo, spec.commit)}
    except Refused as refused:
        return list(refused.problems)
    problems = []
    for file in spec.files:
        found = listed.get(file.path)
        if found is None or (found.size, found.digest) != (file.size, file.digest):
            shown = "is not there" if found is None else f"has {found.size} bytes, {found.digest}"
            problems.append(
                f"{spec.repo} at {spec.commit}: {file.path} {shown}; {file.size} bytes, {file.digest} were "
                "pinned: the hub does not serve the commit that it pinned; make another data line"
            )
    return problems
