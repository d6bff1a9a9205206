"""What to say of a folder that was named as a training line and is none: what it is, and the way out."""

from __future__ import annotations

from pathlib import Path

from trainer_core.errors import Refused
from trainer_core.line.paths import EXPORT_RECORD, DataPaths, LinePaths


def require_line(root: Path, *, exported_too: bool = False) -> None:
    """Raises Refused with what a folder is when it is no training line."""
    if not LinePaths(root).run_json.exists():
        raise Refused(no_line(root, exported_too=exported_too))


def no_line(root: Path, *, exported_too: bool = False) -> str:
    """The refusal of a folder without run.json; with `exported_too` an exported folder was as welcome."""
    line = LinePaths(root.parents[1]) if root.parent.name == "checkpoints" else None
    if line is not None and line.run_json.exists():
        return f"{root}: a checkpoint, not a training line; name its line, {line.root}"
    if DataPaths(root).data.exists():
        return f"{root}: a data line, not a training line; `nstrain new RUN --data {root}` makes one"
    if (root / EXPORT_RECORD).exists():
        return f"{root}: an exported folder, not a training line; `nstrain generate` and transformers read it"
    if exported_too:
        return f"{root}: not a training line (no run.json) and not an exported folder (no {EXPORT_RECORD})"
    return f"{root}: not a training line (no run.json); `nstrain new {root}` makes one"
