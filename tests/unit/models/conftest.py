"""One thread: sums have one order, and the tests do not fight over the cores. A host for packages."""

import sys

import pytest
import torch

from tests.tools.model_package import BIGRAM, install
from trainer_core.models import external
from trainer_core.models.presets import PRESETS

torch.set_num_threads(1)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Settings of a host of its own; what a test puts on sys.path leaves it, and so do its modules."""
    monkeypatch.setenv("NSTRAIN_HOST", str(tmp_path / "host.json"))
    (tmp_path / "host.json").write_text("{}")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("trainer_core.ops.models.PRESETS", {"llama-cpu": PRESETS["llama-cpu"]})
    before = set(sys.modules)
    yield tmp_path / "host.json"
    external.use_folder(None)
    for name in set(sys.modules) - before:
        if name.startswith("borrowed"):
            del sys.modules[name]


@pytest.fixture
def installed(tmp_path, host):
    """Installs a package where Python finds it."""

    def make(module="borrowed", source=BIGRAM, **names):
        sys.path.append(str(install(tmp_path / f"site-{module}", module, source, **names)))

    return make
