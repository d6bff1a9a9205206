"""What a line keeps for its life: the run.json in its newest checkpoint against the present one.

Kept settings change only when `allow_changes` names them. The learning-rate schedule with its row lengths,
and the batch ramp, only grow at their end: their past never changes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_core.errors import Refused

if TYPE_CHECKING:  # config.py checks its values with the names of this module
    from trainer_core.line.config import RunConfig

KEPT_KEYS = (
    "model",
    "tokens_per_update",
    "optimizer",
    "seed",
    "precision",
    "compile",
    "ema",
    "exactness",
    "metrics",
    "threads",
)
"""Settings a line keeps for its whole life (of `tokens_per_update`: its past)."""

_BEFORE = {"precision": "fp32", "compile": "none"}
"""What lines did that were made before these settings were; `ema` was none."""

DATA_IDENTITY = "data_identity"
"""Named in allow_changes, lets a line go on with another data line; its path alone may change freely."""

_RAMP = "tokens_per_update"


def compile_word(value: Any) -> Any:
    """`compile` as a word; it was a boolean once."""
    return ("none", "model")[value] if isinstance(value, bool) else value


def check_kept(old: Mapping[str, Any], new: RunConfig, where: Path, *, tokens: int) -> list[str]:
    """Compare the copy of run.json in a checkpoint at `tokens` tokens with the present one.

    Returns the kept keys that changed with leave (for the record); raises Refused for the others, with old
    and new value and the way out.
    """
    before, after = _kept(old), _kept(new.dump())
    changed = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
    refused = [
        f"{where}: {key}: a line keeps this setting; the checkpoint has {_said(before, key)}, run.json has "
        f"{_said(after, key)}. Restore it, or name {key!r} in allow_changes to change it on purpose"
        for key in changed
        if not _allowed(key, new)
    ]
    ramp = _past_changed(_ramp(old), _ramp(new.dump()), tokens)
    if ramp and _allowed(_RAMP, new):
        changed = sorted([*changed, _RAMP])
    elif ramp:
        refused.append(
            f"{where}: {_RAMP}{ramp}. Restore it, or name {_RAMP!r} in allow_changes to change it on purpose"
        )
    if schedule := _past_changed(_schedule(old), _schedule(new.dump()), tokens):
        refused.append(f"{where}: schedule{schedule}")
    if refused:
        raise Refused(refused)
    return changed


def _said(kept: Mapping[str, Any], key: str) -> str:
    """A value for people; a model's setting that is left out has its default, which only its family knows."""
    return repr(kept[key]) if key in kept else "none of its own"


def _allowed(key: str, config: RunConfig) -> bool:
    """Whether the key, or one that it lies in, is named in allow_changes."""
    parts = key.split(".")
    return any(".".join(parts[:n]) in config.allow_changes for n in range(1, len(parts) + 1))


def _flatten(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in _flatten(item, f"{key}.{name}").items()}
    return {key.lstrip("."): value}


def _kept(run: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: run.get(key, _BEFORE.get(key)) for key in KEPT_KEYS if key != _RAMP}
    return _flatten({**kept, "compile": compile_word(kept["compile"])})


def _ramp(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The batch pieces; a number is one piece, and the last one is open: past its end it stays in force."""
    value = run[_RAMP]
    pieces = value if isinstance(value, list) else [{"from": 0, "tokens": value}]
    return [*pieces[:-1], {**pieces[-1], "to": None}]


def _schedule(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The schedule pieces with the row length of each."""
    first = run["lengths"][0]["length"]
    return [{**piece, "length": piece.get("length") or first} for piece in run["schedule"]]


def _past_changed(old: list[dict[str, Any]], new: list[dict[str, Any]], tokens: int) -> str | None:
    """Where pieces are not those of before, grown at their end at most; None when they are."""
    for index, piece in enumerate(old):
        found = new[index] if index < len(new) else None
        if found != piece and not (index == len(old) - 1 and _end_moved(piece, found, tokens)):
            return (
                f"[{index}]: it only grows at its end, after the {tokens:,} tokens that are trained; the "
                f"checkpoint has {piece}, run.json has {found}"
            )
    return None


def _end_moved(old: dict[str, Any], new: dict[str, Any] | None, tokens: int) -> bool:
    """Whether only the end of a last piece of one value differs, and lies no earlier than what is trained."""
    if new is None or old.get("kind", "constant") != "constant" or {**new, "to": 0} != {**old, "to": 0}:
        return False
    return new["to"] is None or int(new["to"]) >= tokens
