"""Host settings and how names become paths."""

import json
import os

import pytest

from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Writes the settings file named by $NSTRAIN_HOST."""
    path = tmp_path / "host.json"
    monkeypatch.setenv("NSTRAIN_HOST", str(path))

    def write(value):
        path.write_text(json.dumps(value))

    return write


def test_no_file_means_no_settings(tmp_path, monkeypatch):
    monkeypatch.delenv("NSTRAIN_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_host().work_root is None


def test_a_named_file_must_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("NSTRAIN_HOST", str(tmp_path / "none.json"))
    with pytest.raises(Refused, match=r"none\.json: does not exist, but NSTRAIN_HOST names it"):
        load_host()


def test_env_is_set(host, monkeypatch):
    monkeypatch.delenv("NSTRAIN_TEST_VARIABLE", raising=False)
    host({"env": {"NSTRAIN_TEST_VARIABLE": "7"}})
    load_host()
    assert os.environ.pop("NSTRAIN_TEST_VARIABLE") == "7"


def test_every_problem_is_named(host):
    host({"work_root": 3, "envv": {}, "env": {"A": 1}})
    with pytest.raises(Refused) as refused:
        load_host()
    text = "\n".join(refused.value.problems)
    assert len(refused.value.problems) == 3
    assert all(key in text for key in ("work_root", "envv", "env.A"))


def test_relative_names_are_looked_up_under_work_root(host, tmp_path, monkeypatch):
    host({"work_root": str(tmp_path / "lines")})
    monkeypatch.chdir(tmp_path)
    assert resolve("trunk") == tmp_path / "lines" / "trunk"
    (tmp_path / "trunk").mkdir()
    assert resolve("trunk") == tmp_path / "trunk"
    assert resolve("/somewhere/else") == resolve("/somewhere/else").absolute()


def test_limits_are_counts_of_at_least_one(host):
    assert load_host_with(host, {}).limits.download == 4
    assert load_host_with(host, {}).limits.tokenize >= 1
    found = load_host_with(host, {"limits": {"tokenize": 3}}).limits
    assert (found.download, found.tokenize) == (4, 3)
    host({"limits": {"download": 0, "tokenize": "2", "train": 1}})
    with pytest.raises(Refused) as refused:
        load_host()
    text = "\n".join(refused.value.problems)
    assert all(key in text for key in ("limits.download", "limits.tokenize", "limits.train"))


def load_host_with(host, value):
    """The settings of a file with this content."""
    host(value)
    return load_host()
