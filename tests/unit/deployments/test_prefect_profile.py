"""The profile: ours appears, others stay byte for byte, and it is active only where no server was named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from deployments.prefect_profile import (
    names_a_server,
    profile_state,
    profiles_path,
    with_profile,
    write_profile,
)
from trainer_core.errors import Refused

URL = "http://127.0.0.1:4203/api"
OTHERS = """# my profiles
active = "work"

[profiles.work]
PREFECT_API_URL = "https://prefect.example/api"  # the team's

[profiles.quiet]
PREFECT_LOGGING_LEVEL = "ERROR"
"""


def test_without_a_file_the_profile_is_made_and_active() -> None:
    profiles = tomllib.loads(with_profile("", URL))
    assert profiles["active"] == "nstrain"
    ours = profiles["profiles"]["nstrain"]
    assert ours["PREFECT_API_URL"] == URL
    assert ours["PREFECT_PLUGINS_ENABLED"] == "true" and ours["PREFECT_PLUGINS_ALLOW"] == "nstrain"


def test_a_profile_with_a_server_stays_active_and_untouched() -> None:
    text = with_profile(OTHERS, URL)
    assert text.startswith(OTHERS.rstrip())
    assert tomllib.loads(text)["active"] == "work"


@pytest.mark.parametrize("active", ["quiet", "ephemeral", "test"])
def test_a_profile_without_a_server_gives_way(active: str) -> None:
    text = OTHERS.replace('active = "work"', f'active = "{active}"')
    written = with_profile(text, URL)
    assert tomllib.loads(written)["active"] == "nstrain"
    assert "# my profiles" in written and "# the team's" in written


def test_writing_again_changes_only_what_is_ours() -> None:
    once = with_profile(OTHERS, URL)
    assert with_profile(once, URL) == once
    wider = once.replace('PREFECT_PLUGINS_ALLOW = "nstrain"', 'PREFECT_PLUGINS_ALLOW = "nstrain,aws"')
    moved = tomllib.loads(with_profile(wider, "http://127.0.0.1:4300/api"))["profiles"]
    assert moved["nstrain"]["PREFECT_API_URL"] == "http://127.0.0.1:4300/api"
    assert moved["nstrain"]["PREFECT_PLUGINS_ALLOW"] == "nstrain,aws"
    assert moved["work"] == tomllib.loads(OTHERS)["profiles"]["work"]


def test_our_table_may_stand_between_others() -> None:
    text = '[profiles.nstrain]\nPREFECT_API_URL = "http://old/api"\n\n[profiles.z]\nPREFECT_HOME = "z"\n'
    profiles = tomllib.loads(with_profile(text, URL))
    assert profiles["profiles"]["z"] == {"PREFECT_HOME": "z"}
    assert profiles["profiles"]["nstrain"]["PREFECT_API_URL"] == URL


def test_templates_of_prefect_count_by_what_they_name() -> None:
    assert names_a_server({"active": "local"}) and names_a_server({"active": "cloud"})
    assert not names_a_server({"active": "ephemeral"}) and not names_a_server({})


def test_the_file_is_where_prefect_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profiles_path({}) == tmp_path / ".prefect" / "profiles.toml"
    assert profiles_path({"PREFECT_HOME": "/a"}) == Path("/a/profiles.toml")
    assert profiles_path({"PREFECT_HOME": "/a", "PREFECT_PROFILES_PATH": "/b.toml"}) == Path("/b.toml")


def test_what_to_export_is_said_when_another_server_is_in_force(tmp_path: Path) -> None:
    environ = {"PREFECT_HOME": str(tmp_path)}
    (tmp_path / "profiles.toml").write_text(OTHERS)
    first = write_profile(URL, environ)
    assert first.changed and not first.active and "export PREFECT_PROFILE=nstrain" in (first.hint or "")
    assert not write_profile(URL, environ).changed
    assert profile_state(URL, environ | {"PREFECT_PROFILE": "nstrain"}).active
    overridden = environ | {"PREFECT_PROFILE": "nstrain", "PREFECT_API_URL": "http://elsewhere/api"}
    assert "unset PREFECT_API_URL" in (profile_state(URL, overridden).hint or "")


def test_a_broken_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text("active = ")
    with pytest.raises(Refused, match="cannot be read"):
        write_profile(URL, {"PREFECT_HOME": str(tmp_path)})
    assert path.read_text() == "active = "
