"""What a fresh environment gets: the tested versions, and an installed torch that is good enough stays."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from deployments import bootstrap
from deployments.bootstrap import constraints_without, kept
from deployments.doctor import requirements, satisfies

ROOT = Path(bootstrap.__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("installed", "stays"),
    [(None, ()), ("2.8.0", ()), ("2.9.1+cu128", ("torch", "triton")), ("2.13.0+cpu", ("torch", "triton"))],
)
def test_a_good_torch_stays(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, stays: tuple[str, ...]
) -> None:
    monkeypatch.setattr(bootstrap, "installed_version", lambda _: installed)
    assert kept(PROJECT["dependencies"]) == stays


def test_a_torch_that_came_without_triton_gets_the_tested_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "installed_version", {"torch": "2.13.0+cpu"}.get)
    assert kept(PROJECT["dependencies"]) == ("torch",)


def test_only_the_kept_lines_go() -> None:
    left = constraints_without(CONSTRAINTS, ("torch", "triton"))
    gone = set(CONSTRAINTS.splitlines()) - set(left.splitlines())
    assert {line.split("==")[0] for line in gone} == {"torch", "triton"}
    assert constraints_without(CONSTRAINTS, ()) == CONSTRAINTS
    assert constraints_without("torchvision==1\ntorch==2\n", ("torch",)) == "torchvision==1\n"


def test_the_tested_versions_satisfy_the_project() -> None:
    pinned = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", CONSTRAINTS, flags=re.MULTILINE))
    assert not [version for version in pinned.values() if "+" in version], (
        "a local version cannot be installed"
    )
    lower = {name.lower(): version for name, version in pinned.items()}
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    for name, bounds in requirements(wanted):
        assert satisfies(lower[name.lower()], bounds), name
