"""A real, small training line on a real data line, and what of it must survive any interruption."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.tiny_data import disk_line
from trainer_core.data.heldout.validation import make_heldout
from trainer_core.line.checkpoints import newest
from trainer_core.line.ledger import live_rows
from trainer_core.line.paths import LinePaths
from trainer_core.ops.new import new_line

VOLATILE = ("time", "seconds", "attempt")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How big a line is and how long it takes."""

    model: str = "llama-nano-cpu"
    length: int = 16
    rows_per_update: int = 6
    updates_per_cycle: int = 8
    validate_every: int = 5
    save_every: int = 3
    docs: int = 24

    @property
    def update_tokens(self) -> int:
        return self.length * self.rows_per_update

    @property
    def cycle_tokens(self) -> int:
        return self.update_tokens * self.updates_per_cycle


TINY = Size()
"""A cycle takes a tenth of a second."""

UPDATE_TOKENS = TINY.update_tokens
CYCLE_TOKENS = TINY.cycle_tokens

SLOW = Size(
    model="llama-cpu",
    length=64,
    rows_per_update=16,
    updates_per_cycle=64,
    validate_every=32,
    save_every=16,
    docs=1500,
)
"""A cycle takes several seconds: long enough to do something to the line meanwhile."""


def make_real_line(
    root: Path, *, cycles: int = 3, size: Size = TINY, settings: tuple[str, ...] = ()
) -> LinePaths:
    """Data line `root/data` and training line `root/trunk`, which ends after `cycles` cycles."""
    update_tokens, cycle_tokens = size.update_tokens, size.cycle_tokens
    data = disk_line(root, cycle_tokens=cycle_tokens, heldout=0.2, files=3, docs=size.docs, consumer=False)
    make_heldout(data)
    warmup = 2 * update_tokens
    schedule = (
        f'schedule=[{{"from":0,"to":{warmup},"kind":"warmup"}},'
        f'{{"from":{warmup},"to":{cycles * cycle_tokens},"kind":"constant"}}]'
    )
    line = root / "trunk"
    new_line(
        line,
        model=size.model,
        data=data,
        peak_lr=1e-2,
        tokens_per_update=update_tokens,
        settings=(
            schedule,
            f'lengths=[{{"length":{size.length},"rows":4}}]',
            f'validation={{"every_updates":{size.validate_every},"rows_per_stratum":1}}',
            f'checkpoints={{"every_updates":{size.save_every},"keep_last":2}}',
            'guards={"backoff_seconds":0}',
            "print_every=1",
            "precision=fp32",  # the same line on every machine
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
        "tensors": {file.stem: file.read_bytes() for file in last.path.glob("*.safetensors")},
        **{
            kind: [
                {k: v for k, v in row.items() if k not in VOLATILE} for row in live_rows(paths.metrics, kind)
            ]
            for kind in ("update", "validation")
        },
        "manifests": {p.name: p.read_bytes() for p in sorted((data / "manifests").iterdir())},
        "shards": sorted(p.name for p in (data / "cycles").iterdir()),
    }
