"""Files that two sources of a line would both read the same text from: it would be trained twice.

Each source decides by its own key what it holds out, so one would train on the text that the other validates
with. Reading two columns of one file is no overlap. Compares pins only and never opens a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from trainer_core.data.sources import SourceSpec, TextRule

_SHOWN = 3

_Key = tuple[TextRule, str, str]


def overlaps(known: Iterable[SourceSpec], new: Iterable[SourceSpec]) -> list[str]:
    """What new sources read that another one reads as well, one problem for each pair of sources."""
    owners: dict[_Key, str] = {}
    for spec in known:
        owners |= dict.fromkeys(_keys(spec), spec.name)
    problems = []
    for spec in new:
        shared: dict[str, list[str]] = {}
        for key in _keys(spec):
            if (owner := owners.setdefault(key, spec.name)) != spec.name:
                shared.setdefault(owner, []).append(key[2])
        problems += [
            f"source {spec.name!r}: {len(paths)} of its files are those of source {owner!r} "
            f"({', '.join(paths[:_SHOWN])}), whose text would be trained twice and held out by two keys; "
            'narrow one "glob"'
            for owner, paths in shared.items()
        ]
    return problems


def _keys(spec: SourceSpec) -> list[_Key]:
    """Place and rule of every file; a folder counts wherever its links lead."""
    if spec.folder is None:
        return [(spec.text, f"hub:{spec.repo}", file.path) for file in spec.files]
    folder = os.path.realpath(spec.folder)
    return [(spec.text, "folder", os.path.join(folder, file.path)) for file in spec.files]
