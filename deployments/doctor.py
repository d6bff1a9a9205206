"""`nstrain doctor`: what is missing or too old on this host, and what it would take to run a line.

Works in a half-installed environment: it needs nothing beyond the standard library, and a check that cannot
be made for lack of a package says which. Changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

State = Literal["ok", "note", "bad"]
MIN_PYTHON = (3, 11)
_MIN_FREE_BYTES = 5 * 2**30
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?P<bounds>[^;]*)(?:;(?P<marker>.*))?$")
_BOUND = re.compile(r"(>=|<=|==|<|>)\s*([0-9][^,\s)]*)")
_OTHER_NAMES = {"triton": ("pytorch-triton", "triton-rocm", "pytorch-triton-rocm")}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report."""

    name: str
    """What was looked at."""
    state: State
    """`bad` keeps a line from running; `note` does not."""
    detail: str
    """What was found, and the way out if it is not good."""


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version: local and pre-release parts of vendor builds (`2.10.0a0+nv`) do not count."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def satisfies(version: str, bounds: str) -> bool:
    """Whether a version is within bounds such as `>=3.9.1,<3.10`."""

    def padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return numbers + (0,) * (6 - len(numbers))

    found = padded(release(version))
    for operator, bound in _BOUND.findall(bounds):
        limit = padded(release(bound))
        holds = {">=": found >= limit, "<=": found <= limit, "==": found == limit}
        holds |= {"<": found < limit, ">": found > limit}
        if not holds[operator]:
            return False
    return True


def installed_version(name: str) -> str | None:
    """Version of an installed distribution, under one of the names that vendors give it."""
    for candidate in (name, *_OTHER_NAMES.get(name, ())):
        try:
            return metadata.version(candidate)
        except metadata.PackageNotFoundError:
            continue
    return None


def requirements(lines: list[str]) -> list[tuple[str, str]]:
    """Name and bounds of the requirements that hold on this platform; extras are left out."""
    found = []
    for line in lines:
        match = _REQUIREMENT.match(line.replace("(", "").replace(")", ""))
        if match is None:
            continue
        marker = match["marker"] or ""
        if "extra" in marker or ("linux" in marker and sys.platform != "linux"):
            continue
        found.append((match["name"], match["bounds"].strip()))
    return found


def _packages() -> list[Check]:
    try:
        lines = metadata.requires("nstrain") or []
    except metadata.PackageNotFoundError:
        return [Check(name="nstrain", state="bad", detail="not installed; `pip install --no-deps -e .`")]
    checks = []
    for name, bounds in requirements(lines):
        version = installed_version(name)
        if version is None:
            checks.append(Check(name=name, state="bad", detail=f"missing, needs {bounds or 'any version'}"))
        elif not satisfies(version, bounds):
            checks.append(Check(name=name, state="bad", detail=f"{version} does not satisfy {bounds}"))
        else:
            checks.append(Check(name=name, state="ok", detail=version))
    return checks


def _python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    good = sys.version_info[:2] >= MIN_PYTHON
    detail = version if good else f"{version}; needs {'.'.join(map(str, MIN_PYTHON))} or newer"
    return Check(name="python", state="ok" if good else "bad", detail=detail)


def _device() -> Check:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Check(name="device", state="ok", detail=f"{', '.join(names)} (CUDA {torch.version.cuda})")
    cores = os.cpu_count()
    return Check(
        name="device", state="note", detail=f"no GPU that torch can use: lines train on {cores} CPU cores"
    )


def _host() -> list[Check]:
    from trainer_core.host import host_file, load_host

    settings = load_host()
    path = host_file()
    checks = [
        Check(name="host settings", state="ok", detail=f"{path}" if path.exists() else "none (defaults)")
    ]
    root = Path(settings.work_root or ".").expanduser().absolute()
    nearest = next(parent for parent in (root, *root.parents) if parent.exists())
    if not os.access(nearest, os.W_OK):
        checks.append(Check(name="work root", state="bad", detail=f"{root}: not writable"))
    else:
        note = "" if settings.work_root else " (work_root is not set: the current directory)"
        checks.append(Check(name="work root", state="ok", detail=f"{root}{note}"))
    free = shutil.disk_usage(nearest).free
    state: State = "ok" if free >= _MIN_FREE_BYTES else "note"
    checks.append(Check(name="disk", state=state, detail=f"{free / 2**30:.1f} GiB free"))
    return checks


def _server() -> list[Check]:
    from deployments.api import Api
    from deployments.home import Home, checkout, read_record
    from deployments.prefect_profile import profile_state

    checks = [Check(name="checkout", state="ok", detail=str(checkout()))]
    record = read_record(Home.default())
    if not Api(record.url, timeout_seconds=3.0).healthy() or not record.server_alive():
        missing = "not running; `nstrain up` starts it (a line also runs without: `nstrain run --inline`)"
        return [*checks, Check(name="server", state="note", detail=missing)]
    checks.append(Check(name="server", state="ok", detail=record.ui))
    workers = ", ".join(sorted(record.live_workers())) or "none; `nstrain up` starts them"
    checks.append(Check(name="workers", state="ok" if record.live_workers() else "note", detail=workers))
    state = profile_state(record.url)
    checks.append(
        Check(
            name="profile",
            state="ok" if state.active else "note",
            detail=state.hint or f"nstrain, in {state.path}",
        )
    )
    return checks


def _plugin() -> Check:
    from deployments.prefect_profile import NAME, profiles_path, read_profiles

    declared = {entry.name for entry in metadata.entry_points(group="prefect.plugins")}
    profiles = read_profiles(profiles_path())
    chosen = os.environ.get("PREFECT_PROFILE", profiles.get("active"))
    settings = profiles.get("profiles", {}).get(chosen, {})
    enabled = os.environ.get("PREFECT_PLUGINS_ENABLED", settings.get("PREFECT_PLUGINS_ENABLED", "false"))
    if NAME not in declared:
        detail = "off: the entry point is missing; install nstrain again (`pip install --no-deps -e .`)"
    elif str(enabled).lower() not in ("true", "1", "yes", "on"):
        detail = "off: the active profile does not enable plugins; write `prefect deployment run trunk/trunk`"
    else:
        return Check(name="plugin", state="ok", detail="on: `prefect deployment run trunk` means trunk/trunk")
    return Check(name="plugin", state="note", detail=detail)


def _guarded(name: str, check: Callable[[], Check | list[Check]]) -> list[Check]:
    """Run a check; one that cannot be made is itself a finding."""
    try:
        result = check()
    except ModuleNotFoundError as error:
        return [Check(name=name, state="bad", detail=f"cannot be looked at without {error.name}")]
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        return [Check(name=name, state="bad", detail=str(error))]
    return result if isinstance(result, list) else [result]


def examine() -> list[Check]:
    """All checks of this host."""
    checks = [_python(), *_packages()]
    checks += _guarded("device", _device)
    checks += _guarded("host settings", _host)
    checks += _guarded("server", _server)
    checks += _guarded("plugin", _plugin)
    return checks


def report(*, as_json: bool) -> int:
    """Print the checks; 0 when a line could run, 20 otherwise."""
    checks = examine()
    bad = [check for check in checks if check.state == "bad"]
    if as_json:
        rows = [asdict(check) for check in checks]
        print(json.dumps({"format": "doctor/1", "ok": not bad, "checks": rows}, indent=2))
        return 20 if bad else 0
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = {"ok": "ok  ", "note": "note", "bad": "BAD "}[check.state]
        print(f"{mark}  {check.name:<{width}}  {check.detail}")
    print(f"\n{len(bad)} problem(s): a line cannot run here yet." if bad else "\nA line can run here.")
    return 20 if bad else 0


if __name__ == "__main__":
    sys.exit(report(as_json="--json" in sys.argv[1:]))
