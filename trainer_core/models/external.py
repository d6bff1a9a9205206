"""Model families of other packages: declared in metadata, imported only when one is asked for by name.

A package declares a family by an entry point of the group `nstrain.models`: its name is the family's, its
value a module with `build` and, if it has any, PRESETS. Declarations are read from what is installed and from
the folder that the host settings name, whose pyproject.toml declares them too. Imports no torch.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from trainer_core.errors import Refused
from trainer_core.models.contract import answered, is_name, preset_problems
from trainer_core.models.families import FAMILIES
from trainer_core.models.preset import Preset

GROUP = "nstrain.models"
"""Entry-point group of model families."""

_folder: Path | None = None


def use_folder(folder: Path | None) -> None:
    """Has families looked for in a folder too, and its modules found after those that are installed."""
    global _folder
    _folder = folder
    for path in _import_paths():
        if str(path) not in sys.path:
            sys.path.append(str(path))


def declared() -> tuple[dict[str, EntryPoint], list[str]]:
    """Every family of other packages by name, and what is wrong about others; imports none."""
    from trainer_core.models.presets import PRESETS  # which asks this module for more

    found: dict[str, EntryPoint] = {}
    problems: list[str] = []
    try:
        in_folder = _of_folder()
    except Refused as refused:
        in_folder = []
        problems += refused.problems
    for point in [*metadata.entry_points(group=GROUP), *in_folder]:
        earlier = found.get(point.name, point)
        if not is_name(point.name):
            problems.append(f"{said(point)}: the name of a family has letters, digits and ._+- alone")
        elif point.name in FAMILIES or point.name in PRESETS:
            kind = "family" if point.name in FAMILIES else "preset"
            problems.append(
                f"{said(point)}: nstrain has a {kind} of this name built in; give the entry point of that "
                "package another name, or uninstall it"
            )
        elif earlier.value != point.value:
            problems.append(
                f"{said(point)}: {earlier.value}{_owner(earlier)} has this name too and is used; rename or "
                "uninstall one; an .egg-info folder counts as installed"
            )
        else:
            found[point.name] = point
    return found, list(dict.fromkeys(problems))


def load(point: EntryPoint) -> Any:
    """The module of a family, checked. Raises Refused when it is none."""
    with answered(said(point), "cannot be imported", "mend or uninstall its package"):
        module = point.load()
        is_family = callable(getattr(module, "build", None))
    if not is_family:
        raise Refused(
            f"{said(point)}: has no function build(config, vocab_size, seed, dtype); docs/models.md says "
            "what a family has"
        )
    return module


def presets_of(point: EntryPoint) -> list[Preset]:
    """The presets of a family. Raises Refused with every one that is none."""
    module = load(point)
    with answered(said(point), "PRESETS cannot be read"):
        presets = getattr(module, "PRESETS", ())
        listed = isinstance(presets, Iterable) and not isinstance(presets, dict | str)
        inside = tuple(presets) if listed else ()
    if not listed:
        raise Refused(f"{said(point)}: PRESETS is a {type(presets).__name__}; expected a tuple of Preset")
    problems: list[str] = []
    for preset in inside:
        if not isinstance(preset, Preset):
            problems.append(f"a {type(preset).__name__}; expected Preset of trainer_core.models.preset")
        else:
            problems += [f"{preset.name!r} {problem}" for problem in preset_problems(preset, point.name)]
    if problems:
        raise Refused([f"{said(point)}: PRESETS holds {problem}" for problem in problems])
    return list(inside)


def said(point: EntryPoint) -> str:
    """A family and where it comes from, for messages."""
    return f"model family {point.name!r} ({point.value}{_owner(point)})"


def _owner(point: EntryPoint) -> str:
    """The package, or the folder of the host settings, that declares a family."""
    return f" of the package {point.dist.name}" if point.dist else f" of {_folder}" if _folder else ""


def _import_paths() -> list[Path]:
    """Where Python finds the modules of the folder: in it, and in its src."""
    return [path for path in (_folder, _folder / "src") if path.is_dir()] if _folder else []


def _of_folder() -> list[EntryPoint]:
    """What pyproject.toml of the folder declares; what is installed into the folder is found as installed."""
    if _folder is None:
        return []
    setting = f"{_folder}: `neuronspark` in the host settings names this folder of model families"
    if not _folder.is_dir():
        raise Refused(f"{setting}, but it does not exist; mend the setting or take it out")
    project = _folder / "pyproject.toml"
    try:
        table = tomllib.loads(project.read_text(encoding="utf-8")) if project.exists() else {}
        points = table.get("project", {}).get("entry-points", {}).get(GROUP, {})
        found = [EntryPoint(name=str(name), value=str(value), group=GROUP) for name, value in points.items()]
    except (OSError, ValueError, AttributeError) as error:
        raise Refused(f"{project}: cannot be read ({error})") from None
    installed = metadata.distributions(path=[str(path) for path in _import_paths()])
    if not found and not any(one.entry_points.select(group=GROUP) for one in installed):
        raise Refused(
            f"{setting}, but nothing in it declares one: add to {project.name} the table "
            f'[project.entry-points."{GROUP}"] with a line NAME = "MODULE"'
        )
    return found
