"""Going on from a checkpoint: find the newest sound one, compare what must not differ, load it in place.

Everything that could make the next update differ from the uninterrupted one is compared here; a difference is
refused, never trained on.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer_core.errors import Refused
from trainer_core.line.checkpoints import CheckpointInfo, list_checkpoints, read_state, verify
from trainer_core.line.config import RunConfig, check_kept
from trainer_core.line.events import record_event
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
    is tried. Raises Refused when checkpoints exist but none is sound.
    """
    found = list_checkpoints(paths)
    problems: list[str] = []
    for info in reversed(found):
        bad = verify(info.path)
        if not bad:
            return ResumePoint(info=info, state=read_state(info.path))
        problems += bad
        aside = info.path.with_name(f"damaged-{info.path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        info.path.rename(aside)
        record_event(
            paths.events,
            "checkpoint_damaged",
            f"{info.path.name} is damaged and was set aside as {aside.name}: {bad[0]}",
            update=info.update,
            tokens=info.tokens,
        )
    if problems:
        raise Refused([*problems, f"{paths.checkpoints}: no sound checkpoint is left to resume from"])
    return None


def check_resume(
    point: ResumePoint,
    config: RunConfig,
    paths: LinePaths,
    *,
    layout_digest: str,
    data_identity: Mapping[str, Any],
) -> list[str]:
    """Compare configuration, layout and data with the checkpoint.

    Returns the kept settings that were changed on purpose. Raises Refused with every difference.
    """
    state = point.state
    problems: list[str] = []
    changed: list[str] = []
    try:
        changed = check_kept(state["run"], config, paths.run_json)
    except Refused as refused:
        problems += refused.problems
    if state["layout_digest"] != layout_digest:
        problems.append(
            f"{point.info.path}: made with another parameter layout (digest {state['layout_digest'][:16]}, "
            f"now {layout_digest[:16]}); restore the model's configuration"
        )
    recorded = state["data"]
    if "data" not in {key.split(".")[0] for key in config.allow_changes}:
        problems += [
            f"{config.data}: {key} is {data_identity.get(key)!r}, the checkpoint was trained on {value!r}; "
            "restore the data line, or name 'data' in allow_changes to change it on purpose"
            for key, value in recorded.items()
            if data_identity.get(key) != value
        ]
    if problems:
        raise Refused(problems)
    return changed


def load_tensors(path: Path, live: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's flat tensors into the live ones, one mapped file at a time.

    Raises Refused when a file is missing or holds another name, type or shape: nothing is ever filled in.
    """
    for name, tensor in live.items():
        file_path = path / f"{name}.safetensors"
        header = safetensors_header(name, tensor)
        try:
            file = open(file_path, "rb")  # noqa: SIM115 (closed below; opening alone may fail)
        except FileNotFoundError:
            raise Refused(f"{file_path}: missing; this checkpoint cannot be resumed") from None
        with file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
            if view[: len(header)] != header:
                raise Refused(f"{file_path}: expected one tensor {name} {list(tensor.shape)} {tensor.dtype}")
            source = torch.frombuffer(view, dtype=tensor.dtype, count=tensor.numel(), offset=len(header))
            tensor.copy_(source)
            del source
