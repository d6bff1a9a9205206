"""`nstrain new`: make a training line from a preset, and register it as the consumer of its data line.

Writes run.json last, so that a line exists whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_core.data.heldout.validation import cut_rows
from trainer_core.data.plan.consumer import register_consumer
from trainer_core.errors import Refused
from trainer_core.line.config import RunConfig, parse_run, save_run
from trainer_core.line.files import parse_json
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.models.preset import Preset
from trainer_core.models.presets import find_preset
from trainer_core.ops.check import fit_problems, least_vocabulary, model_problems, vocabulary_problems


def new_line(
    line: Path,
    *,
    model: str,
    data: Path,
    peak_lr: float,
    tokens_per_update: int | list[Any] | None = None,
    weight_decay_batch: int | None = None,
    ema_horizon_tokens: int | None = None,
    settings: Sequence[str] = (),
) -> RunConfig:
    """Create the line; returns its configuration.

    `tokens_per_update` is a number or the pieces of a ramp; None means the preset's. With
    `ema_horizon_tokens` the parameters are averaged over so many tokens, from that many tokens on. `settings`
    are `key=value` pairs with dotted keys of run.json and JSON values, e.g. `seed=3` or `optimizer.clip=0.5`.
    Raises Refused with every problem; then nothing was created.
    """
    paths, source = LinePaths(line), DataPaths(data)
    if paths.run_json.exists():
        raise Refused(f"{paths.run_json}: this line exists already; choose another name or edit the file")
    preset = find_preset(model)
    if not source.data.exists():
        raise Refused(f"{source.data}: not a data line; make it with `nstrain data init --work {data}`")
    draft = _draft(preset, source, peak_lr=peak_lr)
    if tokens_per_update is not None:
        draft["tokens_per_update"] = tokens_per_update
    if weight_decay_batch is not None:
        draft["optimizer"]["weight_decay_batch"] = weight_decay_batch
    if ema_horizon_tokens is not None:
        draft["ema"] = {"horizon_tokens": ema_horizon_tokens, "from_tokens": ema_horizon_tokens}
    for setting in settings:
        _apply(draft, setting)
    config = parse_run(draft, paths.run_json)
    _register(paths, source, config)
    paths.checkpoints.mkdir(parents=True, exist_ok=True)
    save_run(paths, config)
    return config


def _draft(preset: Preset, source: DataPaths, *, peak_lr: float) -> dict[str, Any]:
    """run.json as the preset has it, before the user's settings."""
    training = preset.training
    warmup = int(training["warmup_tokens"])
    return {
        "format": "run/1",
        "model": {
            "name": preset.name,
            "family": preset.family,
            "vocab_size": least_vocabulary(source),
            "config": dict(preset.config),
        },
        "data": str(source.root.absolute()),
        "schedule": [
            {"from": 0, "to": warmup, "kind": "warmup"},
            {"from": warmup, "to": None, "kind": "constant"},
        ],
        "tokens_per_update": training["tokens_per_update"],
        "optimizer": {
            "peak_lr": peak_lr,
            "min_lr": peak_lr * training["min_lr_ratio"],
            "betas": list(training["betas"]),
            "eps": training["eps"],
            "weight_decay": training["weight_decay"],
            "clip": training["clip"],
        },
        "lengths": [{"length": training["row_length"], "rows": training["rows"], "ac": training["ac"]}],
        "seed": 0,
        "precision": _precision(),
        "validation": {"every_updates": training["validation_every"], "rows_per_stratum": 4},
        "checkpoints": {"every_updates": training["checkpoint_every"]},
    }


def _precision() -> str:
    """What this host computes in fastest; a line keeps it for life, wherever it goes on."""
    from trainer_core.engine.assemble import fast_precision, line_device  # seconds of torch

    return fast_precision(line_device())


def _apply(draft: dict[str, Any], setting: str) -> None:
    """Set one dotted key of the draft."""
    key, equals, text = setting.partition("=")
    if not equals:
        raise Refused(f"--set {setting!r}: expected key=value, for example optimizer.clip=0.5")
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        value = text
    target: Any = draft
    *parents, last = key.split(".")
    for name in parents:
        target = target.setdefault(name, {}) if isinstance(target, dict) else None
        if not isinstance(target, Mapping):
            raise Refused(f"--set {setting!r}: {name!r} in {key!r} has no keys of its own")
    target[last] = value


def _register(paths: LinePaths, source: DataPaths, config: RunConfig) -> None:
    """Tell the data line who consumes it, and cut the validation rows of each length.

    A record whose line never came to be gives way to the next, so a refusal in between does no harm.
    """
    problems = [
        *vocabulary_problems(source, config),
        *fit_problems(source, config),
        *model_problems(config),
    ]
    if problems:
        raise Refused(problems)
    register_consumer(source.root, line=str(paths.root.resolve()), **config.consumer_schedules())
    for shape in config.lengths:
        cut_rows(source.root, shape.length, config.validation.rows_per_stratum)
