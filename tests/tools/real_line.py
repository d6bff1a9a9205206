"""A real, small training line on a real data line, and what of it must survive any interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tools.tiny_data import disk_line
from trainer_core.data.validation import make_heldout
from trainer_core.line.checkpoints import newest
from trainer_core.line.ledger import live_rows
from trainer_core.line.paths import LinePaths
from trainer_core.ops.new import new_line

TENSORS = ("params", "exp_avg", "exp_avg_sq")
VOLATILE = ("time", "seconds", "attempt")

CYCLE_TOKENS = 768
UPDATE_TOKENS = 96
LENGTH = 16


def make_real_line(root: Path, *, cycles: int = 3, settings: tuple[str, ...] = ()) -> LinePaths:
    """Data line `root/data` and training line `root/trunk`: `cycles` cycles of 8 updates of 6 rows of 16."""
    data = disk_line(root, cycle_tokens=CYCLE_TOKENS, heldout=0.2, files=3, docs=24, consumer=False)
    make_heldout(data)
    end = cycles * CYCLE_TOKENS
    schedule = (
        f'schedule=[{{"from":0,"to":{LENGTH * 12},"kind":"warmup"}},'
        f'{{"from":{LENGTH * 12},"to":{end},"kind":"constant"}}]'
    )
    line = root / "trunk"
    new_line(
        line,
        model="llama-nano-cpu",
        data=data,
        peak_lr=1e-2,
        tokens_per_update=UPDATE_TOKENS,
        settings=(
            schedule,
            f'lengths=[{{"length":{LENGTH},"rows":4}}]',
            'validation={"every_updates":5,"rows_per_stratum":1}',
            'checkpoints={"every_updates":3,"keep_last":2}',
            'guards={"backoff_seconds":0}',
            "print_every=1",
            *settings,
        ),
    )
    return LinePaths(line)


def outcome_of_line(paths: LinePaths) -> dict[str, Any]:
    """Everything an interrupted line must share with an uninterrupted one, as comparable values."""
    last = newest(paths)
    assert last is not None
    data = paths.root.parent / "data"
    return {
        "last_update": last.update,
        "tensors": {name: (last.path / f"{name}.safetensors").read_bytes() for name in TENSORS},
        **{
            kind: [
                {k: v for k, v in row.items() if k not in VOLATILE} for row in live_rows(paths.metrics, kind)
            ]
            for kind in ("update", "validation")
        },
        "manifests": {p.name: p.read_bytes() for p in sorted((data / "manifests").iterdir())},
        "shards": sorted(p.name for p in (data / "cycles").iterdir()),
    }
