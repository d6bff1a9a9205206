"""A Prefect plugin: `prefect deployment run NAME` and `inspect NAME` mean `NAME/NAME`.

Prefect refuses a bare name; all our deployments are called like their flows. Prefect calls the hook when it
is imported, before its command reads the arguments, and only where a profile enables plugins. The hook
changes one element of sys.argv in the `prefect` command, says so on stderr, and does nothing elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from prefect.plugins import register_hook

PREFECT_PLUGIN_API_REQUIRES = ">=0.1,<1"

GLOBAL_VALUE_OPTIONS = frozenset({"--profile", "-p"})
"""Options of `prefect` itself that take a value."""

VALUE_OPTIONS: dict[str, frozenset[str]] = {
    "run": frozenset(
        {
            "--id",
            "--job-variable",
            "-jv",
            "--param",
            "-p",
            "--params",
            "--start-in",
            "--start-at",
            "--tag",
            "--watch-interval",
            "--watch-timeout",
            "--flow-run-name",
        }
    ),
    "inspect": frozenset({"--output", "-o"}),
}
"""Options with a value of the two commands that a bare name is completed in."""


def _skip_options(arguments: Sequence[str], start: int, with_value: frozenset[str]) -> int | None:
    """Index of the first argument from `start` on that is neither an option nor an option's value."""
    index = start
    while index < len(arguments):
        argument = arguments[index]
        if argument == "--" or not argument.startswith("-"):
            return index if argument != "--" else None
        index += 2 if argument in with_value else 1
    return None


def bare_name_index(arguments: Sequence[str]) -> int | None:
    """Where the bare name stands in the arguments of `prefect`, or None if there is none to complete."""
    group = _skip_options(arguments, 0, GLOBAL_VALUE_OPTIONS)
    if group is None or arguments[group] not in ("deployment", "deployments"):
        return None
    verb = group + 1
    if verb >= len(arguments) or arguments[verb] not in VALUE_OPTIONS:
        return None
    options = arguments[verb + 1 :]
    if any(option == "--id" or option.startswith("--id=") for option in options):
        return None
    name = _skip_options(arguments, verb + 1, VALUE_OPTIONS[arguments[verb]])
    return name if name is not None and arguments[name] and "/" not in arguments[name] else None


def _is_prefect_command() -> bool:
    """Whether this process is the `prefect` command, as a script or as `python -m prefect`."""
    program = PurePath(sys.argv[0]) if sys.argv else PurePath()
    if program.name == "-m":
        return "-m" in sys.orig_argv and sys.orig_argv[sys.orig_argv.index("-m") + 1] == "prefect"
    return program.name in ("prefect", "prefect.exe") or program.parts[-2:] == ("prefect", "__main__.py")


@register_hook
def setup_environment(*, ctx: Any) -> None:
    """Prefect's hook: complete the name in place."""
    if not _is_prefect_command():
        return
    index = bare_name_index(sys.argv[1:])
    if index is not None:
        name = sys.argv[1 + index]
        sys.argv[1 + index] = f"{name}/{name}"
        print(f"nstrain: {name} means deployment {name}/{name}", file=sys.stderr)
