"""Reads what a line's directories say about its cycles, for `trainer_core.line.cycles.next_actions`."""

from __future__ import annotations

from pathlib import Path

from trainer_core.data.prepare import CyclePreparer
from trainer_core.line.checkpoints import newest
from trainer_core.line.config import load_run
from trainer_core.line.cycles import LineFacts, token_span
from trainer_core.line.files import iterate_jsonl, read_json
from trainer_core.line.paths import DataPaths, LinePaths

NOTHING_TO_DO = "everything asked for is trained already; nothing was changed"
"""What a start answers when `next_actions` has nothing for the facts."""


def read_facts(line: Path, target: int | None, *, ahead: int = 1) -> LineFacts:
    """The facts of a line now; cheap enough to be read every second."""
    paths = LinePaths(line)
    config = load_run(paths)
    data = DataPaths(Path(config.data))
    checkpoint = newest(paths)
    current = checkpoint.cycle if checkpoint else 0
    preparer = CyclePreparer(data.root)
    names = [path.name for path in data.cycles.iterdir()] if data.cycles.is_dir() else []
    downloaded = {
        int(row["cycle"]) for row in iterate_jsonl(data.cycles_log) if row.get("kind") == "downloaded"
    }
    return LineFacts(
        current=current,
        target=target,
        end_tokens=config.end_tokens,
        tokens=checkpoint.tokens if checkpoint else 0,
        published=frozenset(int(n) for n in names if n.isdigit() and preparer.published(int(n))),
        half_deleted=frozenset(
            int(n.removesuffix(".deleted")) for n in names if n.endswith(".deleted") and n[:6].isdigit()
        ),
        downloaded=frozenset(downloaded),
        ends=_ends(data, current, ahead),
        ahead=ahead,
        keep_cycles=config.data_keep_cycles,
    )


def _ends(data: DataPaths, current: int, ahead: int) -> dict[int, int]:
    """Tokens trained by the end of each planned cycle that matters now."""
    ends = {}
    for cycle in range(current, current + ahead + 1):
        if data.manifest(cycle).exists():
            _, ends[cycle] = token_span(read_json(data.manifest(cycle))["parts"])
    return ends
