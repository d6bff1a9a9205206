"""The root command: lazy, one place for errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module, metadata

import pytest

from deployments import cli
from trainer_core.errors import AwaitingGPU, DiskFull, Refused


def _command(monkeypatch: pytest.MonkeyPatch, error: BaseException | int | None) -> None:
    """Let `nstrain up` do what a test needs."""

    def up() -> int | None:
        if isinstance(error, BaseException):
            raise error
        return error

    monkeypatch.setattr("deployments.cli.server.up", up)


def test_every_problem_of_a_refusal_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _command(monkeypatch, Refused(["a.json: x", "b.json: y"]))
    assert cli.run(["up"]) == 20
    assert capsys.readouterr().err.splitlines() == ["nstrain: a.json: x", "nstrain: b.json: y"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DiskFull("full"), 32),
        (AwaitingGPU("busy"), 31),
        (OSError(28, "No space left on device", "f"), 32),
        (PermissionError(13, "Permission denied", "x"), 20),
        (OSError(36, "File name too long", b"long"), 20),
        (KeyboardInterrupt(), 130),
        (None, 0),
        (50, 50),
    ],
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, error: BaseException | int | None, code: int) -> None:
    _command(monkeypatch, error)
    assert cli.run(["up"]) == code


@pytest.mark.parametrize(
    "error", [AssertionError("broken"), OSError(5, "Input/output error", "f"), FileNotFoundError(2, "x")]
)
def test_errors_that_no_user_can_mend_are_not_hidden(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    _command(monkeypatch, error)
    with pytest.raises(type(error)):
        cli.run(["up"])


def test_an_error_of_a_path_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _command(monkeypatch, NotADirectoryError(20, "Not a directory", "/a/b"))
    assert cli.run(["up"]) == 20
    assert capsys.readouterr().err == "nstrain: /a/b: Not a directory\n"


def test_a_command_line_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["down", "--no-such-option"]) == cli.USAGE_EXIT_CODE
    assert cli.run(["no-such-command"]) == cli.USAGE_EXIT_CODE
    assert "no-such" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == metadata.version("nstrain")


@pytest.mark.parametrize("name", [name for name, *_ in cli.COMMANDS])
def test_every_command_is_there(name: str) -> None:
    target = {command: path for command, path, *_ in cli.COMMANDS}[name]
    module, _, attribute = target.partition(":")
    assert callable(getattr(import_module(module), attribute))
    assert cli.run([name, "--help"]) == 0


def test_help_and_status_load_neither_torch_nor_prefect() -> None:
    code = (
        "import sys; from deployments.cli import run; print(run(sys.argv[1:]));"
        "print([m for m in ('torch', 'prefect', 'triton', 'numpy') if m in sys.modules])"
    )
    for arguments in (["--help"], ["status", "no-such-line"]):
        finished = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        loaded = finished.stdout.splitlines()[-1]
        assert "torch" not in loaded and "prefect" not in loaded and "triton" not in loaded
