"""The modelling code that goes along: our own files, which import each other and nothing else of ours."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trainer_core.export import source_files
from trainer_core.export.source_files import flat_name, needed_sources

FILES = needed_sources("trainer_core.models.neuronspark.model")


def imports(text: str) -> list[ast.ImportFrom | ast.Import]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom | ast.Import)]


def test_every_import_is_among_the_files_or_needs_torch_alone() -> None:
    outside = set()
    for text in FILES.values():
        for node in imports(text):
            if isinstance(node, ast.Import):
                outside |= {alias.name.split(".")[0] for alias in node.names}
            elif not node.level:
                outside.add((node.module or "").split(".")[0])
            elif node.module:
                assert f"{node.module}.py" in FILES
            else:
                assert {f"{alias.name}.py" for alias in node.names} <= FILES.keys()
    assert "torch" in outside
    assert not outside & {"trainer_core", "triton", "numpy", "pydantic", "safetensors", "tokenizers"}


class _WithoutImports(ast.NodeTransformer):
    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None


@pytest.mark.parametrize("name", ["models/neuronspark/dendritic", "kernels/scan/chunked", "kernels/register"])
def test_code_is_ours_but_for_its_imports(name: str) -> None:
    home = Path(source_files.__file__).parents[1]
    ours = (home / f"{name}.py").read_text(encoding="utf-8")
    theirs = FILES[f"nstrain_{name.replace('/', '_')}.py"]
    trees = [ast.dump(_WithoutImports().visit(ast.parse(text))) for text in (ours, theirs)]
    assert trees[0] == trees[1]


def test_no_branch_for_a_gpu_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'type == "cuda"' not in "".join(FILES.values())
    home = tmp_path / "trainer_core"
    home.mkdir()
    (home / "root.py").write_text(
        '"""é."""\nfrom typing import TYPE_CHECKING\nfrom trainer_core import near\n'
        "from trainer_core.near import f as g, h\n\n"
        "if TYPE_CHECKING:\n    from trainer_core.types import T\n\n\n"
        'def run(x, d):\n    if "é" and d.type == "cuda" and x:  # é\n'
        "        from trainer_core.kernel import launch\n\n        return launch(x)\n"
        "    return near.f(x)\n"
    )
    (home / "near.py").write_text("def f(x):\n    return x\n\n\nh = f\n")
    monkeypatch.setattr(source_files, "_HOME", home)
    found = needed_sources("trainer_core.root")
    assert (
        list(found) == ["nstrain_near.py", "nstrain_root.py"]
        and flat_name("trainer_core.a.b") == "nstrain_a_b"
    )
    assert found["nstrain_root.py"].splitlines()[1:] == [
        '"""é."""',
        "from typing import TYPE_CHECKING",
        "from . import nstrain_near as near",
        "from .nstrain_near import f as g, h",
        "",
        "pass",
        "",
        "",
        "def run(x, d):",
        '    if "é" and False and x:  # é',
        '        raise NotImplementedError("this is not part of an exported model")',
        "",
        "        return launch(x)",
        "    return near.f(x)",
    ]
