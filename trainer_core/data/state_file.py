"""Reads and writes D/state.json, and repairs it from the newest manifest.

A manifest is the truth about its cycle: it is written before the state, so a state that lags behind (a kill
between the two, or a lost file) is replaced by the manifest's state_after.
"""

from __future__ import annotations

from pathlib import Path

from trainer_core.data.manifest import read_manifest
from trainer_core.data.plan_state import FORMAT, PlanState
from trainer_core.errors import Refused
from trainer_core.line.files import read_json, write_json
from trainer_core.line.paths import DataPaths


def planned_cycles(paths: DataPaths) -> int:
    """Number of cycles that have a manifest. Raises Refused when one is missing in between."""
    if not paths.manifests.is_dir():
        return 0
    numbers = sorted(int(entry.stem) for entry in paths.manifests.glob("[0-9]*.json"))
    if numbers != list(range(len(numbers))):
        lost = sorted(set(range(numbers[-1])) - set(numbers))
        raise Refused(
            f"{paths.manifests}: manifests of cycles {lost} are missing; restore them from a backup"
        )
    return len(numbers)


def current_state(paths: DataPaths) -> PlanState:
    """The state by state.json and the manifests, whichever is further."""
    planned = planned_cycles(paths)
    state = _read(paths.state) if paths.state.exists() else PlanState()
    if state.next_cycle > planned:
        raise Refused(
            f"{paths.state}: says that {state.next_cycle} cycles are planned, {planned} manifests are in "
            f"{paths.manifests}; restore the manifests from a backup"
        )
    if state.next_cycle < planned:
        return read_manifest(paths.manifest(planned - 1)).state_after()
    return state


def write_state(paths: DataPaths, state: PlanState) -> None:
    """Replace state.json; the same state again writes nothing."""
    value = {**state.to_json(), "digest": state.digest()}
    if not paths.state.exists() or read_json(paths.state) != value:
        write_json(paths.state, value)


def _read(path: Path) -> PlanState:
    value = read_json(path)
    if value.get("format") != FORMAT:
        raise Refused(f"{path}: format is {value.get('format')!r}, this version reads {FORMAT!r}")
    state = PlanState.from_json(value)
    if state.digest() != value.get("digest"):
        raise Refused(
            f"{path}: its digest does not fit its values; delete it, the manifests hold the state as well"
        )
    return state
