"""The direction of imports: who may know whom. Lazy imports count where the rule is about knowing."""

from __future__ import annotations

import pytest
import sources
from sources import imports_in, imports_of, loads, module_files, within

MODULES = sorted(module_files())


def _known(module: str, *forbidden: str) -> list[str]:
    """Imports of forbidden packages anywhere in a module, inside functions too."""
    found = [entry for entry in imports_of(module) if within(entry.target, *forbidden)]
    return [f"{module}:{entry.line} imports {entry.target}" for entry in found]


def _loaded(module: str, *forbidden: str) -> list[str]:
    """Forbidden packages that come in when a module is imported, directly or through others of ours."""
    return [
        f"{' -> '.join((*chain, name))}" for name, chain in loads(module).items() if within(name, *forbidden)
    ]


def _problems(found: list[list[str]]) -> list[str]:
    return [problem for problems in found for problem in problems]


LAYERS = ("trainer_core", "tasks", "flows", "deployments")


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_knows_only_the_layers_below(layer: str) -> None:
    above = LAYERS[LAYERS.index(layer) + 1 :]
    assert not _problems([_known(module, *above) for module in MODULES if within(module, layer)])


def test_trainer_core_never_knows_prefect() -> None:
    assert not _problems([_known(module, "prefect") for module in MODULES if within(module, "trainer_core")])


TORCH_FREE = (
    "trainer_core.errors",
    "trainer_core.host",
    "trainer_core.line",
    "trainer_core.schedule",
    "trainer_core.data",
    "trainer_core.supervise",
    "trainer_core.models.presets",
)


@pytest.mark.parametrize("part", TORCH_FREE)
def test_torch_free_parts(part: str) -> None:
    inside = [module for module in MODULES if within(module, part)]
    assert inside, f"{part} has no module"
    assert not _problems(
        [_known(module, "torch", "triton") + _loaded(module, "torch", "triton") for module in inside]
    )


@pytest.mark.parametrize("layer", ["tasks", "flows", "deployments"])
def test_layers_of_prefect_load_no_torch(layer: str) -> None:
    assert not _problems([_loaded(module, "torch", "triton") for module in MODULES if within(module, layer)])


def test_the_command_loads_no_prefect() -> None:
    hooks = ("deployments.prefect_plugin",)  # Prefect itself loads it
    commands = [module for module in MODULES if within(module, "deployments") and module not in hooks]
    assert not _problems([_loaded(module, "prefect") for module in commands])


BARE = ("trainer_core.kernels", "trainer_core.models", "trainer_core.engine", "trainer_core.gpu")


def test_kernels_models_and_engine_need_no_pydantic() -> None:
    inside = [module for module in MODULES if within(module, *BARE)]
    assert not _problems([_known(module, "pydantic") + _loaded(module, "pydantic") for module in inside])


def test_the_engine_knows_no_model() -> None:
    inside = [module for module in MODULES if within(module, "trainer_core.engine")]
    assert not _problems([_known(module, "trainer_core.models") for module in inside])


ONLY = {
    "triton": ("trainer_core.kernels",),
    "pynvml": ("trainer_core.gpu",),
    "wandb": ("trainer_core.telemetry",),
    "huggingface_hub": ("trainer_core.data.hub.child",),
    "tokenizers": ("trainer_core.data.tokens.encode", "trainer_core.data.tokens.train_tokenizer"),
    "trainer_core.train": (
        "trainer_core.train",
        "trainer_core.worker",
        "trainer_core.ops.run",
        "trainer_core.ops.replay",
        "trainer_core.evaluate",
        "trainer_core.measure",
    ),
}
"""A package, and the only places that may import it."""


@pytest.mark.parametrize("package", sorted(ONLY))
def test_one_place_for_a_package(package: str) -> None:
    outside = [module for module in MODULES if not within(module, *ONLY[package])]
    assert not _problems([_known(module, package) for module in outside])


def test_the_reader_sees_all_kinds_of_imports() -> None:
    """The rules above are worth what this reader is worth."""
    source = (
        "import a.b\nfrom p.q import r, s\nfrom . import near\n"
        "def f():\n    import lazy\nif TYPE_CHECKING:\n    import never\nelse:\n    import other\n"
        "try:\n    import tried\nexcept ImportError:\n    pass\nclass C:\n    import early\n"
    )
    found = {entry.target: entry.at_load for entry in imports_in(source, "p.m", {"p.q.r", "p.near"})}
    assert found == {
        "a.b": True,
        "p.q.r": True,
        "p.q": True,
        "p.near": True,
        "lazy": False,
        "other": True,
        "tried": True,
        "early": True,
    }


def test_chains_go_through_our_modules_and_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = loads("trainer_core.line.lock")
    assert "trainer_core.errors" in chains and "trainer_core.line" in chains and "fcntl" in chains
    assert chains["trainer_core.errors"] == ("trainer_core.line.lock",)
    assert sources.ROOT.joinpath("pyproject.toml").exists()
