"""What people and programs may rely on, as plain values: `python tests/tools/public_surface.py > FILE`.

Commands with their options, deployments with their parameters, exit codes. The frozen copy is
tests/cases/public_surface.json; a change of it needs a line in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from cyclopts import App

from deployments.cli import build_app
from trainer_core.errors import OUTCOMES

ROOT = Path(__file__).resolve().parents[2]


def _options(command: App) -> list[str]:
    """Arguments of a command: positional ones in capitals, others with their dashes."""
    names: list[str] = []
    for argument in command.assemble_argument_collection(parse_docstring=False):
        names.extend(argument.names if argument.names else ())
    return sorted(name for name in names if not name.startswith("--no-") or name == "--no-wait")


def commands(app: App, prefix: str = "") -> dict[str, list[str]]:
    """Every command, groups included, with its arguments."""
    found: dict[str, list[str]] = {}
    for name in app:
        if name.startswith("-"):
            continue
        command = app[name]
        below = commands(command, f"{prefix}{name} ")
        found |= below
        if command.default_command is not None:
            found[f"{prefix}{name}"] = _options(command)
    return found


def _plain(kind: Any) -> str:
    """A type hint without its annotations, for reading."""
    if get_origin(kind) is not None and get_args(kind):
        inner = [_plain(part) for part in get_args(kind) if isinstance(part, type) or get_origin(part)]
        return " | ".join(inner) or str(kind)
    return getattr(kind, "__name__", str(kind))


def deployments() -> dict[str, dict[str, str]]:
    """Every deployment of prefect.yaml with the parameters of its flow."""
    content = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    found = {}
    for entry in content["deployments"]:
        path, _, attribute = entry["entrypoint"].partition(":")
        flow = getattr(import_module(path.removesuffix(".py").replace("/", ".")), attribute)
        hints = get_type_hints(flow.fn)
        signature = inspect.signature(flow.fn)
        found[f"{flow.name}/{entry['name']}"] = {
            name: _plain(hints[name])
            + ("" if parameter.default is inspect.Parameter.empty else " (optional)")
            for name, parameter in signature.parameters.items()
        }
    return found


def surface() -> dict[str, Any]:
    """The whole public surface."""
    return {
        "commands": dict(sorted(commands(build_app()).items())),
        "deployments": dict(sorted(deployments().items())),
        "exit_codes": {str(code): outcome.state_name for code, outcome in sorted(OUTCOMES.items())},
    }


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=2)
    print()
