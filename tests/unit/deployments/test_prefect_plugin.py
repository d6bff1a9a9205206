"""The bare-name completion: what it completes, what it leaves alone, and that Prefect runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import cyclopts
import pytest

from deployments.prefect_plugin import VALUE_OPTIONS, bare_name_index

BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "arguments",
    [
        "deployment run NAME",
        "deployments run NAME --watch",
        "deployment inspect NAME",
        "deployment inspect -o json NAME",
        "--profile p deployment run -p line=a/b NAME",
        "-p p --no-prompt deployment run NAME -p line=a/b",
        "deployment run --param line=x --tag=t --watch NAME",
        "deployment run -jv env={} NAME",
    ],
)
def test_a_bare_name_is_found(arguments: str) -> None:
    tokens = arguments.split()
    assert bare_name_index(tokens) == tokens.index("NAME")


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "version",
        "deployment",
        "deployment ls",
        "deployment run",
        "deployment run trunk/trunk",
        "deployment run trunk/trunk -p line=NAME",
        "deployment run --id 0a1b",
        "deployment run --id=0a1b",
        "deployment delete NAME",
        "deployment schedule ls NAME",
        "flow-run inspect NAME",
        "work-pool inspect NAME",
        "deployment run -- NAME",
    ],
)
def test_everything_else_is_left_alone(arguments: str) -> None:
    assert bare_name_index(arguments.split()) is None


@pytest.mark.parametrize("verb", sorted(VALUE_OPTIONS))
def test_the_table_of_options_is_prefects(verb: str) -> None:
    """A new option with a value would be taken for a name: this fails when Prefect has one we do not know."""
    from prefect.cli import deployment

    hints = get_type_hints(getattr(deployment, verb), include_extras=True)
    names: set[str] = set()
    for hint in hints.values():
        if get_origin(hint) is not Annotated:
            continue
        kind, parameter = get_args(hint)[:2]
        if not isinstance(parameter, cyclopts.Parameter) or kind is bool:
            continue
        options = [*(parameter.name or ()), *(parameter.alias or ())]
        names.update(option for option in options if option.startswith("-"))
    assert names and names == VALUE_OPTIONS[verb] - {"-jv"}


def _prefect(tmp_path: Path, command: list[str], **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    # Nothing listens there: the command ends right after it has understood its arguments.
    environment |= {"HOME": str(tmp_path), "PREFECT_API_URL": "http://127.0.0.1:9/api", "DO_NOT_TRACK": "1"}
    return subprocess.run(command, env=environment | settings, capture_output=True, text=True, timeout=120)


def test_prefects_own_command_completes_the_name(tmp_path: Path) -> None:
    arguments = ["deployment", "run", "trunk"]
    script = _prefect(tmp_path, [str(BIN / "prefect"), *arguments], PREFECT_PLUGINS_ENABLED="true")
    module = _prefect(tmp_path, [sys.executable, "-m", "prefect", *arguments], PREFECT_PLUGINS_ENABLED="true")
    for finished in (script, module):
        assert finished.stderr.splitlines()[0] == "nstrain: trunk means deployment trunk/trunk"
        assert "Invalid deployment name" not in finished.stdout + finished.stderr
    off = _prefect(tmp_path, [str(BIN / "prefect"), *arguments])
    assert "nstrain" not in off.stderr


def test_other_programs_keep_their_arguments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys, prefect\nprint(sys.argv[1:])\n")
    command = [sys.executable, str(program), "deployment", "run", "trunk"]
    finished = _prefect(tmp_path, command, PREFECT_PLUGINS_ENABLED="true")
    assert finished.stdout.strip() == "['deployment', 'run', 'trunk']"
    assert "nstrain" not in finished.stderr
