"""Going on from a checkpoint: find the newest sound one, compare what must not differ, load it in place.

Everything that could make the next update differ from the uninterrupted one is compared here; a difference is
refused, never trained on.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer_core.engine.flat import FlatState
from trainer_core.errors import Refused
from trainer_core.host import cores
from trainer_core.line.checkpoints import (
    SLICE_BYTES,
    CheckpointInfo,
    list_checkpoints,
    published,
    read_state,
    verify,
)
from trainer_core.line.config import RunConfig
from trainer_core.line.events import record_event
from trainer_core.line.kept import DATA_IDENTITY, check_kept
from trainer_core.line.ledger import live_rows
from trainer_core.line.paths import LinePaths
from trainer_core.train.checkpoint import safetensors_header


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """A checkpoint that may be continued."""

    info: CheckpointInfo
    """Where it is."""
    state: dict[str, Any]
    """Its state.json."""


def find_resume_point(paths: LinePaths) -> ResumePoint | None:
    """The newest checkpoint whose bytes are sound, or None for a new line.

    A damaged one is set aside under `damaged-u<N>` with an event that names the file, and the next older one
    is tried. Raises Refused, changing nothing, when a file cannot be read, when checkpoints exist but none is
    sound, and when there is none although updates were trained.
    """
    damaged: list[tuple[int, Path, list[str]]] = []
    for update, path in reversed(published(paths)):
        try:
            bad = verify(path, threads=cores())
        except OSError as error:
            raise Refused(
                f"{error.filename}: cannot be read ({error.strerror}); nothing was changed"
            ) from error
        if not bad:
            _set_aside(paths, damaged)
            info = next(info for info in list_checkpoints(paths) if info.update == update)
            return ResumePoint(info=info, state=read_state(path))
        damaged.append((update, path, bad))
    if damaged:
        found = [problem for _, _, problems in damaged for problem in problems]
        raise Refused([*found, f"{paths.checkpoints}: no sound checkpoint is left to resume from"])
    trained = live_rows(paths.metrics)
    if trained:
        raise Refused(
            f"{paths.checkpoints}: no checkpoint is here, but {paths.metrics} has updates up to "
            f"{trained[-1]['update']}; restore the folder, or move {paths.metrics.name} away to train this "
            "line from the start"
        )
    return None


def _set_aside(paths: LinePaths, damaged: Sequence[tuple[int, Path, list[str]]]) -> None:
    """Rename damaged checkpoints (update, directory, problems), with an event each."""
    for update, path, problems in damaged:
        aside = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        record_event(
            paths.events,
            "checkpoint_damaged",
            f"{path.name} is damaged and was set aside as {aside.name}: {problems[0]}",
            update=update,
        )


def check_resume(
    point: ResumePoint,
    config: RunConfig,
    paths: LinePaths,
    *,
    layout_digest: str,
    data_identity: Mapping[str, Any],
    versions: Mapping[str, str],
) -> list[str]:
    """Compare configuration, layout, data and numerics with the checkpoint.

    Returns what differs with leave or without harm to exactness being claimed, a phrase each, for the record:
    kept settings that are in allow_changes, shapes, versions of libraries. Raises Refused with every other
    difference.
    """
    state = point.state
    problems: list[str] = []
    changed: list[str] = []
    try:
        changed = check_kept(state["run"], config, paths.run_json, tokens=point.info.tokens)
    except Refused as refused:
        problems += refused.problems
    if state["layout_digest"] != layout_digest:
        problems.append(
            f"{point.info.path}: made with another parameter layout (digest {state['layout_digest'][:16]}, "
            f"now {layout_digest[:16]}); restore the model's configuration"
        )
    for key, value in state["data"].items():
        if _same_data(value, data_identity.get(key)):
            continue
        if DATA_IDENTITY in config.allow_changes:
            changed.append(f"data line ({key})")
        else:
            problems.append(
                f"{config.data}: {key} is {data_identity.get(key)!r}, the checkpoint was trained on "
                f"{value!r}; restore the data line, or name {DATA_IDENTITY!r} in allow_changes to change it "
                "on purpose"
            )
    if state["versions"].get("numerics") != versions["numerics"]:
        problems.append(
            f"{point.info.path}: made with numerics version {state['versions'].get('numerics')}, this is "
            f"{versions['numerics']}: its updates would not be the same; use the nstrain version "
            f"{state['versions'].get('nstrain')}"
        )
    if problems:
        raise Refused(problems)
    return [*changed, *_harmless(state, config, versions)]


def _harmless(state: Mapping[str, Any], config: RunConfig, versions: Mapping[str, str]) -> list[str]:
    """Differences that are allowed but may change bits; they are recorded."""
    found = [
        f"{name} {state['versions'].get(name)} -> {now}"
        for name, now in versions.items()
        if state["versions"].get(name) != now
    ]
    shapes = config.dump()["lengths"]
    if any(shape not in shapes for shape in state["run"]["lengths"]):
        found.append("micro-batch shapes")
    return found


def _same_data(before: Any, now: Any) -> bool:
    """Whether a checkpoint's data is still there, whatever was added since (such as rows of a new length)."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return all(now.get(key) == value for key, value in before.items())
    return bool(before == now)


def load_state(point: ResumePoint, state: FlatState) -> None:
    """Put a compared checkpoint into the state; raises Refused as `load_tensors` does.

    An average that the line did not have at the checkpoint begins as a copy of its parameters.
    """
    live = dict(state.state_tensors())
    begun = point.state["run"].get("ema") is not None
    if state.E is not None and not begun:
        del live["ema"]
    load_tensors(point.info.path, live)
    if state.E is not None and not begun:
        state.E.copy_(state.P)
    state.load_scalars(point.state["scalars"])


def load_tensors(path: Path, live: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's flat tensors into the live ones, slice by slice: no file is held as a whole.

    Raises Refused when a file is missing, or holds another name, type, shape or size: nothing is filled in.
    """
    for name, tensor in live.items():
        try:
            file = open(path / f"{name}.safetensors", "rb", buffering=0)  # noqa: SIM115 (closed below)
        except FileNotFoundError:
            missing = f"{path / name}.safetensors: missing; this checkpoint cannot be resumed"
            raise Refused(missing) from None
        with file:
            _load(file, name, tensor)


def _load(file: io.FileIO, name: str, tensor: Tensor) -> None:
    header = safetensors_header(name, tensor.dtype, tensor.numel())
    if file.read(len(header)) != header:
        raise Refused(f"{file.name}: expected one tensor {name} {list(tensor.shape)} {tensor.dtype}")
    buffer = bytearray(min(SLICE_BYTES, tensor.nbytes))
    for part in torch.split(tensor, SLICE_BYTES // tensor.element_size()):
        view = memoryview(buffer)[: part.nbytes]
        while len(view):
            count = file.readinto(view)
            if not count:
                raise Refused(f"{file.name}: ends after {file.tell()} bytes, before the tensor does")
            view = view[count:]
        part.copy_(torch.frombuffer(buffer, dtype=tensor.dtype, count=part.numel()))
