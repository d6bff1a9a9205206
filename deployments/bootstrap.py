"""Fill a fresh virtual environment: `python -m deployments.bootstrap [--extra dev]`, what the Makefile calls.

Runs on the standard library alone. A torch that is already installed and satisfies pyproject.toml stays, with
the triton beside it: a CPU build, a vendor's build or an older release is as good as the tested one. Without
a triton, as a CPU build comes, the tested one is installed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from deployments.doctor import installed_version, requirements, satisfies

_KEPT_TOGETHER = ("torch", "triton")


def kept(dependencies: list[str]) -> tuple[str, ...]:
    """Which of `torch` and `triton` are here, when the torch satisfies the project's bounds; else nothing."""
    bounds = dict(requirements(dependencies))
    version = installed_version("torch")
    if version is None or not satisfies(version, bounds["torch"]):
        return ()
    return tuple(name for name in _KEPT_TOGETHER if installed_version(name) is not None)


def constraints_without(text: str, names: tuple[str, ...]) -> str:
    """A constraints file without the lines of some packages."""
    dropped = re.compile(rf"^({'|'.join(names)})\s*==", re.IGNORECASE) if names else None
    return "".join(line for line in text.splitlines(keepends=True) if not (dropped and dropped.match(line)))


def main() -> int:
    """Install the project editable with the tested versions; returns pip's exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--extra", help="extra of pyproject.toml to install too")
    extra = parser.parse_args().extra
    root = Path(__file__).resolve().parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stays = kept(project["dependencies"])
    if stays:
        print(f"torch {installed_version('torch')} is installed and good enough: it stays", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        tested = (root / "constraints.txt").read_text(encoding="utf-8")
        constraints.write_text(constraints_without(tested, stays), encoding="utf-8")
        target = f"{root}[{extra}]" if extra else str(root)
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
        command += ["-c", str(constraints), "-e", target]
        print(f"$ {' '.join(command)}", flush=True)
        return subprocess.run(command, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
