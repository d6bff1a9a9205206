"""What a family of another package has to keep to, asked before anything relies on it. Imports no torch.

Whatever such a package raises becomes a refusal that names the package and the line of its code, so that one
broken package neither hides the others' models nor looks like a fault of nstrain.
"""

from __future__ import annotations

import json
import math
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_core.errors import NstrainError, Refused
from trainer_core.models.preset import TRAINING, Preset

if TYPE_CHECKING:
    import torch

    from trainer_core.models.base import Model


@contextmanager
def answered(who: str, problem: str, way_out: str = "") -> Iterator[None]:
    """Around code of another package: what it raises is refused as its `problem`, with the place.

    Our own errors, a person's interrupt and what the whole process lacks (memory) pass.
    """
    try:
        yield
    except (NstrainError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        more = f"; {way_out}" if way_out else ""
        raise Refused(f"{who}: {problem} ({_told(error)}){more}") from error


def preset_problems(preset: Preset, family: str) -> list[str]:
    """What is wrong with a preset of a family, in words that follow its name."""
    found = []
    if preset.family != family:
        found.append(f"of the family {preset.family!r}; expected {family!r}")
    if not is_name(preset.name):
        found.append("whose name is none; expected letters, digits and ._+- alone")
    if not _is_count(preset.vocab_size):
        found.append(f"whose vocab_size is {preset.vocab_size!r}; expected a positive integer")
    if not _is_json_object(preset.config):
        found.append("whose config is no JSON object; run.json has to hold it")
    if not isinstance(preset.training, Mapping) or preset.training.keys() != TRAINING.keys():
        keys = preset.training.keys() if isinstance(preset.training, Mapping) else set()
        found.append(f"whose training lacks or adds {', '.join(sorted(map(str, keys ^ TRAINING.keys())))}")
        return found
    for key, value in preset.training.items():
        if wanted := _unlike(value, TRAINING[key]):
            found.append(f"whose training has {key} {value!r}; expected {wanted}")
    return found


def model_problems(model: Model, vocab_size: int, dtype: torch.dtype) -> list[str]:
    """What keeps a model from being trained, in words that follow `build`; it has every method.

    Its methods may raise what they like.
    """
    name = type(model).__name__
    modes = model.recomputation
    if not isinstance(modes, tuple | list) or not all(isinstance(mode, str) for mode in modes):
        return [f"returned a {name} whose recomputation is {modes!r}; expected names of modes"]
    found = []
    if tuple(modes[:1]) != ("none",):
        found.append(f'returned a {name} whose recomputation is {modes!r}; "none" comes first')
    if getattr(model, "vocab_size", None) != vocab_size:
        said = getattr(model, "vocab_size", None)
        found.append(f"returned a {name} whose vocab_size is {said!r}; {vocab_size} was asked for")
    longest = getattr(getattr(model, "config", None), "rope_max_seq_len", None)
    if not _is_count(longest):
        found.append(
            f"returned a {name} whose config.rope_max_seq_len is {longest!r}; expected the longest row"
        )
    flops = model.flops_per_token(1)
    if not _is_number(flops) or flops < 0:
        found.append(f"returned a {name} whose flops_per_token gives {flops!r}; expected a number")
    wrong = [f"{key!r} is {param.dtype}" for key, param in model.named_parameters() if param.dtype != dtype]
    found += [f"returned a {name} whose parameter {each}; {dtype} was asked for" for each in wrong]
    return found + [f"returned a {name} {problem}" for problem in _group_problems(model)]


def loss_problem(found: Any) -> str | None:
    """What keeps the result of a model's loss from being one, in words that follow `loss`."""
    if not isinstance(found, tuple) or [type(part).__name__ for part in found] != ["Tensor", "Tensor"]:
        inside = f" of {', '.join(type(part).__name__ for part in found)}" if isinstance(found, tuple) else ""
        return f"returned a {type(found).__name__}{inside}; expected two scalars on the device"
    total, count = found
    if total.ndim or count.ndim:
        shapes = f"{list(total.shape)} and {list(count.shape)}"
        return f"returned tensors of shapes {shapes}; expected two scalars on the device"
    if str(total.dtype) != "torch.float32":
        return f"returned a sum in {total.dtype}; expected float32"
    return None


def _group_problems(model: Model) -> list[str]:
    """Whether its groups hold every parameter once, under its own name."""
    groups = list(model.param_groups())
    inside = [pair for group in groups for pair in group.params]
    found = [f"whose group {group.name!r} is empty" for group in groups if not group.params]
    named = Counter(group.name for group in groups)
    found += [f"with {number} groups {name!r}" for name, number in named.items() if number > 1]
    parameters = dict(model.named_parameters())
    times = Counter(name for name, _ in inside)
    wrong = {name for name, param in inside if parameters.get(name) is not param}
    found += [f"whose param_groups have {name!r}, which is none of its parameters" for name in sorted(wrong)]
    found += [
        f"whose parameter {name!r} is {times[name] or 'not'} {'times ' if times[name] else ''}in param_groups"
        for name in parameters
        if times[name] != 1
    ]
    labels = [model.layer_label(name) for name in parameters]
    if not all(isinstance(label, str) for label in labels):
        found.append("whose layer_label gives something else than text")
    return found


def _told(error: BaseException) -> str:
    """An error in a line, with the place in the package's code that led to it."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first one is the caller's
    places = [frame for frame in frames if "torch" not in Path(frame.filename).parts]
    place = f" at {Path(places[-1].filename).name}:{places[-1].lineno}" if places else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}{place}"


def is_name(value: Any) -> bool:
    """What can be typed, stand in a table and be part of a file's name."""
    return isinstance(value, str) and bool(value) and all(c.isalnum() or c in "._+-" for c in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int) and value > 0


def _is_json_object(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    try:
        json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _unlike(value: Any, usual: Any) -> str | None:
    """What a value of a preset's training was expected to be; None when it is like the usual one."""
    if isinstance(usual, str):
        return None if isinstance(value, str) else "text"
    if isinstance(usual, Sequence):
        pair = isinstance(value, Sequence) and len(value) == len(usual) and all(map(_is_number, value))
        return None if pair else f"{len(usual)} numbers"
    if isinstance(usual, int):
        return None if _is_count(value) else "a positive integer"
    return None if _is_number(value) else "a number"
