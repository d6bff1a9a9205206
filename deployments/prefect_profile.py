"""The Prefect profile `nstrain`: how the user's own `prefect` command finds our server and our plugin.

Edits the user's profiles file as text, touching only the lines of this profile and `active`, and `active`
only when the active profile names no server. Nobody else's profile is changed.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.errors import Refused
from trainer_core.line.files import write_bytes

NAME = "nstrain"
_NAMING_A_SERVER_BY_DEFAULT = ("local", "cloud")
_OVERRIDES = ("PREFECT_API_URL", "PREFECT_PROFILE")


@dataclass(frozen=True, kw_only=True)
class ProfileResult:
    """What became of the profile."""

    path: Path
    """The profiles file."""
    changed: bool
    """Whether the file was written."""
    active: bool
    """Whether a `prefect` command of this environment uses the profile."""
    hint: str | None
    """What to export when it does not."""


def profiles_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The file that Prefect reads profiles from."""
    if named := environ.get("PREFECT_PROFILES_PATH"):
        return Path(named).expanduser()
    if home := environ.get("PREFECT_HOME"):
        return Path(home).expanduser() / "profiles.toml"
    return Path.home() / ".prefect" / "profiles.toml"


def read_profiles(path: Path) -> dict[str, Any]:
    """The parsed profiles file; empty when there is none."""
    if not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(
            f"{path}: Prefect's profiles file cannot be read: {error}; repair or remove it"
        ) from None


def names_a_server(profiles: Mapping[str, Any]) -> bool:
    """Whether the active profile is one, other than ours, that points at a server."""
    active = profiles.get("active")
    if active is None or active == NAME:
        return False
    settings = profiles.get("profiles", {}).get(active)
    return active in _NAMING_A_SERVER_BY_DEFAULT if settings is None else "PREFECT_API_URL" in settings


def with_profile(text: str, url: str) -> str:
    """The profiles file with our profile at `url`, and active if the active profile names no server."""
    profiles = tomllib.loads(text) if text else {}
    settings = {
        # Only our own plugin, unless the user has widened this in the profile.
        "PREFECT_PLUGINS_ALLOW": NAME,
        **profiles.get("profiles", {}).get(NAME, {}),
        "PREFECT_API_URL": url,
        "PREFECT_PLUGINS_ENABLED": "true",
    }
    text = _without_table(text, f"profiles.{NAME}")
    if not names_a_server(profiles):
        text = _with_active(text)
    body = "\n".join(f'{key} = "{value}"' for key, value in sorted(settings.items()))
    result = f"{text.rstrip()}\n\n[profiles.{NAME}]\n{body}\n"
    written = tomllib.loads(result)["profiles"]
    others = {key: value for key, value in profiles.get("profiles", {}).items() if key != NAME}
    assert {key: value for key, value in written.items() if key != NAME} == others
    return result


def _without_table(text: str, table: str) -> str:
    """Cut a table with its lines out of TOML text."""
    pattern = rf"^\[{re.escape(table)}\][^\n]*\n(?:(?!\[)[^\n]*(?:\n|\Z))*"
    return re.sub(pattern, "", text, flags=re.MULTILINE)


def _with_active(text: str) -> str:
    """Make our profile the active one; `active` stands before the first table."""
    head, bracket, tables = text.partition("[")
    line = f'active = "{NAME}"'
    head, count = re.subn(r"^active\s*=[^\n]*$", line, head, flags=re.MULTILINE)
    return f"{head}{bracket}{tables}" if count else f"{line}\n{head}{bracket}{tables}"


def write_profile(url: str, environ: Mapping[str, str] = os.environ) -> ProfileResult:
    """Write the profile and say how this environment reaches the server."""
    path = profiles_path(environ)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    read_profiles(path)
    new = with_profile(old, url)
    if new != old:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, new.encode("utf-8"))
    return profile_state(url, environ, changed=new != old)


def profile_state(
    url: str, environ: Mapping[str, str] = os.environ, *, changed: bool = False
) -> ProfileResult:
    """Whether `prefect` in this environment reaches `url` through the profile, and what to export if not."""
    path = profiles_path(environ)
    profiles = read_profiles(path)
    overriding = [name for name in _OVERRIDES if name in environ]
    pointing = profiles.get("profiles", {}).get(NAME, {}).get("PREFECT_API_URL") == url
    chosen = environ.get("PREFECT_PROFILE", profiles.get("active"))
    reached = environ.get("PREFECT_API_URL", url) == url
    if pointing and chosen == NAME and reached:
        return ProfileResult(path=path, changed=changed, active=True, hint=None)
    unset = f"unset {' '.join(overriding)}; " if "PREFECT_API_URL" in overriding else ""
    hint = f"for the `prefect` command: {unset}export PREFECT_PROFILE={NAME}"
    return ProfileResult(path=path, changed=changed, active=False, hint=hint)
