"""The public surface is frozen: commands, deployments, exit codes; and prefect.yaml fits the flows."""

from __future__ import annotations

import json

import pytest
import yaml
from sources import ROOT

from deployments.workers import POOLS, declared_deployments
from tests.tools.public_surface import surface

YAML = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
EXPECTED_POOLS = {
    "trunk": "gpu",
    "prepare": "data",
    "init": "control",
    "export": "control",
    "stop": "control",
    "status": "control",
}


@pytest.mark.slow
def test_the_public_surface_is_the_frozen_one() -> None:
    frozen = json.loads((ROOT / "tests/cases/public_surface.json").read_text(encoding="utf-8"))
    assert surface() == frozen, (
        "the public surface changed: if on purpose, add a line to CHANGELOG.md and run "
        "`python -m tests.tools.public_surface > tests/cases/public_surface.json`"
    )


def test_every_deployment_has_the_name_of_its_flow_and_its_file() -> None:
    names = [entry["name"] for entry in YAML["deployments"]]
    assert declared_deployments() == {f"{name}/{name}" for name in names}
    for entry in YAML["deployments"]:
        assert entry["entrypoint"] == f"flows/{entry['name']}.py:{entry['name']}"


def test_pools_tags_and_defaults() -> None:
    pools = {entry["name"]: entry["work_pool"]["name"] for entry in YAML["deployments"]}
    assert pools == EXPECTED_POOLS and set(pools.values()) == set(POOLS)
    assert all("nstrain" in entry["tags"] and entry["description"] for entry in YAML["deployments"])
    trunk = next(entry for entry in YAML["deployments"] if entry["name"] == "trunk")
    assert trunk["parameters"] == {"line": "trunk"}


def test_training_depends_on_no_lease_of_the_server() -> None:
    """A deployment limit's lease is lost when the server is away, and the healthy run would be ended."""
    assert not [entry["name"] for entry in YAML["deployments"] if "concurrency_limit" in entry]
