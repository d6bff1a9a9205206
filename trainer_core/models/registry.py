"""Builds a model by preset or family name; a family's module is imported when first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

import torch

from trainer_core.errors import Refused
from trainer_core.models import external
from trainer_core.models.base import Model
from trainer_core.models.contract import answered, loss_problem, model_problems
from trainer_core.models.families import FAMILIES
from trainer_core.models.presets import PRESETS, find_preset


def build(
    name_or_family: str,
    config: Mapping[str, Any] | None,
    vocab_size: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """Builds a model: `config` is all of it for a family, and overrides a preset's for a preset."""
    family, resolved = _resolve(name_or_family, config or {})
    if family in FAMILIES:
        built_in = importlib.import_module(FAMILIES[family].module)
        try:
            model = built_in.build(resolved, vocab_size, seed, dtype)
        except (RuntimeError, TypeError) as error:
            if "overflow" not in str(error).lower():
                raise
            raise Refused(
                f"model: a parameter of this {family} would have more than 2^63 bytes; make its sizes smaller"
            ) from error
        assert isinstance(model, Model), f"{FAMILIES[family].module}.build returned {type(model)}"
        return model
    point = external.declared()[0][family]
    who, module = external.said(point), external.load(point)
    with answered(who, "build failed"):
        found = module.build(resolved, vocab_size, seed, dtype)
    with answered(who, "its model cannot be asked"):
        problems = _not_a_model(found) or model_problems(found, vocab_size, dtype)
    if problems:
        raise Refused([f"{who}: build {problem}" for problem in problems])
    return cast(Model, found)


def recomputation(family: str, config: Mapping[str, Any], vocab_size: int) -> tuple[str, ...]:
    """What `ac` may be for a model; one of another package is built on the meta device to say so."""
    if family in FAMILIES:
        return FAMILIES[family].recomputation
    with torch.device("meta"):
        return build(family, config, vocab_size, 0).recomputation


def loss_problems(
    family: str, config: Mapping[str, Any], vocab_size: int, rows: int, length: int
) -> list[str]:
    """What is wrong with the loss of another package's model, asked on the meta device."""
    if family in FAMILIES:
        return []
    with torch.device("meta"), torch.no_grad():
        model = build(family, config, vocab_size, 0)
        ids = torch.zeros(rows, length, dtype=torch.int64)
        try:
            found = model.loss(ids, ids, "none")
        except Exception:  # the trace of the shape names it, with the operator
            return []
    problem = loss_problem(found)
    return [f"{external.said(external.declared()[0][family])}: its loss {problem}"] if problem else []


def _resolve(name: str, config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Family and whole configuration. Raises Refused for a name that is neither a family's nor a preset's."""
    if name in FAMILIES:
        return name, config
    if name not in PRESETS and name in external.declared()[0]:
        return name, config
    try:
        preset = find_preset(name)
    except Refused as refused:
        more = (
            f"; families: {', '.join(sorted(FAMILIES))}. One of another package is known where the package "
            "is installed, or its folder is named by `neuronspark` in the host settings"
        )
        raise Refused([refused.problems[0] + more, *refused.problems[1:]]) from None
    return preset.family, {**preset.config, **config}


def _not_a_model(model: Any) -> list[str]:
    """What keeps the result of another package's build from being a model, in words that follow `build`."""
    if not isinstance(model, Model):
        return [f"returned a {type(model).__name__}; expected a trainer_core.models.base.Model"]
    needed = [name for name, value in vars(Model).items() if getattr(value, "__isabstractmethod__", False)]
    missing = [name for name in needed if getattr(type(model), name) is getattr(Model, name)]
    return [f"returned a {type(model).__name__} without {', '.join(missing)}"] if missing else []
