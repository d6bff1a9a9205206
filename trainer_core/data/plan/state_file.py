"""Reads and writes D/state.json, and repairs it from the newest manifest.

A manifest is the truth about its cycle: it is written before the state, so a state that lags behind (a kill
between the two, or a lost file) is replaced by the manifest's state_after. Lost manifests come back by
preparing their cycles again: a cycle is a pure function of the line and the state before it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from trainer_core.data.plan.manifest import read_cycle_manifest
from trainer_core.data.plan.state import FORMAT, PlanState
from trainer_core.data.records import read_record, refuse_other
from trainer_core.data.sources import DataLine
from trainer_core.errors import Refused
from trainer_core.line.files import read_json, write_json
from trainer_core.line.paths import DataPaths


def planned_cycles(paths: DataPaths) -> int:
    """Number of cycles that have a manifest. Raises Refused when one is missing in between."""
    if not paths.manifests.is_dir():
        return 0
    names = [entry.stem for entry in paths.manifests.glob("*.json")]
    numbers = sorted(int(name) for name in names if re.fullmatch(r"[0-9]{6,}", name))
    if numbers != list(range(len(numbers))):
        lost = sorted(set(range(numbers[-1])) - set(numbers))
        raise Refused(
            f"{paths.manifests}: manifests of cycles {lost} are missing; restore them from a backup, or move "
            f"{paths.state.name} and all manifests from cycle {lost[0]} on to another place and make them "
            f"again: {_again(paths, lost[0], numbers[-1])}"
        )
    return len(numbers)


def current_state(paths: DataPaths, *, line: DataLine | None = None) -> PlanState:
    """The state by state.json and the manifests, whichever is further.

    With a line, a manifest that another one planned is refused.
    """
    planned = planned_cycles(paths)
    state = _read(paths.state) if paths.state.exists() else PlanState()
    if state.next_cycle > planned:
        raise Refused(
            f"{paths.state}: says that {state.next_cycle} cycles are planned, {planned} manifests are in "
            f"{paths.manifests}; restore the others from a backup, or delete {paths.state} and make them "
            f"again: {_again(paths, planned, state.next_cycle - 1)}"
        )
    if state.next_cycle < planned:
        return read_cycle_manifest(paths, planned - 1, line=line).state_after()
    return state


def require_planned(paths: DataPaths, cycle: int, *, line: DataLine) -> None:
    """Raise Refused when a cycle was never planned, or when its manifest is lost."""
    planned = current_state(paths, line=line).next_cycle
    if not 0 <= cycle < planned:
        known = f"{planned} planned cycles" + (f", 0 to {planned - 1}" if planned else "")
        raise Refused(f"{paths.root}: there are {known}; cycle {cycle} was asked for")


def write_state(paths: DataPaths, state: PlanState) -> None:
    """Replace state.json; the same state again writes nothing."""
    value = {**state.to_json(), "digest": state.digest()}
    if not paths.state.exists() or read_json(paths.state) != value:
        write_json(paths.state, value)


def _again(paths: DataPaths, first: int, last: int) -> str:
    cycles = f"--cycle {first}" + (f", then {first + 1} .. {last} in order" if last > first else "")
    return (
        f"`nstrain data prepare --work {paths.root} {cycles}`; they come out identical, and the shards of "
        "cycles that are trained already can go (`nstrain data delete`)"
    )


def _read(path: Path) -> PlanState:
    return read_record(
        path, FORMAT, _checked_state, way_out="delete it, the manifests hold the state as well"
    )


def _checked_state(value: dict[str, Any]) -> PlanState:
    state = PlanState.from_json(value)
    refuse_other(value, {**state.to_json(), "digest": value["digest"]})
    if state.digest() != value["digest"]:
        raise ValueError("its digest does not fit its values")
    return state
