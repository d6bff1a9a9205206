"""The `nstrain` command: its table of commands, and the one place where an error becomes a message.

Each command's module is imported when that command runs, so that `nstrain status` loads neither torch nor
Prefect. Commands return nothing or an exit code; they raise NstrainError for what a user can mend.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from trainer_core.errors import DiskFull, NstrainError, disk_full, path_refused

if TYPE_CHECKING:
    from cyclopts import App

USAGE_EXIT_CODE = 20
"""A command line that cannot be understood is refused like any other bad input."""

_HOST, _DATA, _LINE = "Host", "Data", "Training lines"

COMMANDS: tuple[tuple[str, str, str, str], ...] = (
    ("up", "deployments.cli.server:up", _HOST, "Start the Prefect server, the workers and the deployments."),
    (
        "down",
        "deployments.cli.server:down",
        _HOST,
        "Stop running lines with a checkpoint, then end all of it.",
    ),
    ("doctor", "deployments.cli.server:doctor", _HOST, "List what is missing or too old on this host."),
    (
        "sample",
        "deployments.cli.data:sample",
        _DATA,
        "Write a small sample corpus with recipe and tokenizer.",
    ),
    ("data", "deployments.cli.data:app", _DATA, "Make a data line and its cycles."),
    ("new", "deployments.cli.lines:new", _LINE, "Make a training line on a data line."),
    (
        "tune",
        "deployments.cli.tune:tune",
        _LINE,
        "Measure the fastest micro-batch shapes that fit, and use them.",
    ),
    ("check", "deployments.cli.questions:check", _LINE, "Make every check of a start, without training."),
    ("run", "deployments.cli.lines:run", _LINE, "Run or continue a line."),
    ("status", "deployments.cli.questions:status", _LINE, "Say where a line stands, from its files alone."),
    ("logs", "deployments.cli.questions:logs", _LINE, "Show a line's log."),
    ("stop", "deployments.cli.lines:stop", _LINE, "Stop a line with a checkpoint."),
    ("verify", "deployments.cli.questions:verify", _LINE, "Compare every checkpoint with its hashes."),
    ("models", "deployments.cli.models:models", _LINE, "List the model presets with exact counts."),
    (
        "export",
        "deployments.cli.export:export",
        _LINE,
        "Write a checkpoint as a folder that transformers loads.",
    ),
    ("generate", "deployments.cli.generate:generate", _LINE, "Let a trained model write text."),
    ("bench", "deployments.cli.bench:bench", _LINE, "Measure a preset's training on this machine."),
)
"""Name, import path, group in the help, and help of every command."""


def build_app() -> App:
    """The root command with everything registered by name, nothing imported."""
    from cyclopts import App

    app = App(
        name="nstrain",
        help="Language-model pre-training lines that run as Prefect flows.",
        version=metadata.version("nstrain"),
        exit_on_error=False,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, target, group, text in COMMANDS:
        app.command(target, name=name, group=group, help=text)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; what a user can mend is printed, one problem per line."""
    try:
        from cyclopts import CycloptsError
    except ModuleNotFoundError:
        return _without_cyclopts(arguments)
    try:
        result = build_app()(list(arguments))
        sys.stdout.flush()
    except CycloptsError:
        return USAGE_EXIT_CODE  # cyclopts has printed it
    except NstrainError as error:
        return complain(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe went away; keep Python from complaining about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if disk_full(error):
            return complain(
                DiskFull(f"{error.filename or 'disk'}: {error.strerror}; free space and start again")
            )
        if (refused := path_refused(error)) is not None:
            return complain(refused)
        raise
    return result if isinstance(result, int) else 0


def complain(error: NstrainError) -> int:
    """Print an error's problems to stderr; returns its exit code."""
    problems = getattr(error, "problems", None) or (str(error),)
    for problem in problems:
        print(f"nstrain: {problem}", file=sys.stderr)
    return error.exit_code


def _without_cyclopts(arguments: Sequence[str]) -> int:
    """In an environment without our dependencies only `doctor` works, and says what to install."""
    if list(arguments[:1]) == ["doctor"]:
        from deployments.doctor import report

        return report(as_json="--json" in arguments)
    print("nstrain: cyclopts is not installed; `nstrain doctor` lists everything missing", file=sys.stderr)
    return USAGE_EXIT_CODE


def main() -> None:
    """Entry point of the console script."""
    # Names of files and texts of models may hold what the terminal's encoding has not; nothing ends for that.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
