"""Versions, bounds and the report of `nstrain doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments import doctor
from deployments.doctor import Check, release, requirements, satisfies


@pytest.mark.parametrize(
    ("version", "bounds", "good"),
    [
        ("2.13.0+cpu", ">=2.9.1", True),
        ("2.9.1", ">=2.9.1", True),
        ("2.9.0", ">=2.9.1", False),
        ("2.10.0a0+b4e4ee81d3.nv25.12", ">=2.9.1", True),
        ("3.9.1", ">=3.9.1,<3.10", True),
        ("3.10", ">=3.9.1,<3.10", False),
        ("3.9", ">=3.9.1,<3.10", False),
        ("2", ">=2.0", True),
        ("7.2", "", True),
    ],
)
def test_bounds(version: str, bounds: str, good: bool) -> None:
    assert satisfies(version, bounds) is good


def test_releases_are_numbers() -> None:
    assert release("2.10.0rc1") > release("2.9.1") and release("unknown") == ()


def test_requirements_of_this_platform() -> None:
    lines = [
        "torch>=2.9.1",
        'triton>=3.5.1; sys_platform == "linux"',
        "prefect<3.10,>=3.9.1",
        'pytest>=8; extra == "dev"',
    ]
    names = [name for name, _ in requirements(lines)]
    assert names == (["torch", "triton", "prefect"] if sys.platform == "linux" else ["torch", "prefect"])


def test_a_missing_and_an_old_package_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {"torch": "2.8.0", "numpy": "2.1"}
    monkeypatch.setattr(
        doctor.metadata, "requires", lambda _: ["torch>=2.9.1", "cyclopts>=5,<6", "numpy>=2.0"]
    )
    monkeypatch.setattr(doctor, "installed_version", versions.get)
    found = doctor._packages()
    assert [(check.name, check.state) for check in found] == [
        ("torch", "bad"),
        ("cyclopts", "bad"),
        ("numpy", "ok"),
    ]
    assert "2.8.0" in found[0].detail and ">=2.9.1" in found[0].detail and "missing" in found[1].detail
    monkeypatch.setattr(doctor, "examine", lambda: found)
    assert doctor.report(as_json=True) == 20
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_notes_do_not_keep_a_line_from_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = [Check(name="server", state="note", detail="not running")]
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    assert doctor.report(as_json=False) == 0
    assert "A line can run here." in capsys.readouterr().out


def test_a_check_that_lacks_a_package_says_which() -> None:
    def check() -> Check:
        raise ModuleNotFoundError("No module named 'pydantic'", name="pydantic")

    assert doctor._guarded("host settings", check)[0].detail == "cannot be looked at without pydantic"


def test_it_runs_where_nothing_is_installed(tmp_path: Path) -> None:
    """In an environment that has only the sources it lists everything, and the command leads to it."""
    root = Path(doctor.__file__).resolve().parent.parent
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": str(root)}
    for code in (
        "from deployments.cli import main; main()",
        "import runpy; runpy.run_module('deployments.doctor', run_name='__main__')",
    ):
        command = [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.argv = ['nstrain', 'doctor', '--json']; {code}",
        ]
        finished = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert finished.returncode == 20, finished.stderr
        states = {check["name"]: check["state"] for check in json.loads(finished.stdout)["checks"]}
        assert states["torch"] == "bad" and states["device"] == "bad" and states["python"] == "ok"
