"""Sizes, names and contents of files: what a reader may rely on everywhere."""

from __future__ import annotations

import ast
import builtins
import re
import sys

import pytest
from sources import ROOT, module_files, text_files

MAX_LINES = 500
MAX_LONG_FUNCTIONS = 0.10
LONG_FUNCTION = 45

PYTHON = [path for path in text_files() if path.suffix == ".py"]
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(?:root|home|work|mnt|opt|srv|Users|media)/[\w.]")
REGISTRY = re.compile(r"pypi|index-url\s+http|extra-index|download\.pytorch|devpi|artifactory", re.IGNORECASE)
OUTSIDE = re.compile(r"\.\./shared\b")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


def _lines(pattern: re.Pattern[str]) -> list[str]:
    here = {"test_files.py"}
    found = []
    for path in text_files():
        if path.name in here:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    return found


def test_no_file_is_longer_than_a_person_reads() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PYTHON}
    assert not {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > MAX_LINES}
    ours = sorted(sizes[path] for path in module_files().values())
    assert ours[len(ours) // 2] <= 200


def test_few_functions_are_long() -> None:
    lengths = []
    for path in module_files().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
    long = [length for length in lengths if length > LONG_FUNCTION]
    assert len(long) <= MAX_LONG_FUNCTIONS * len(lengths)


@pytest.mark.parametrize("module", sorted(module_files()))
def test_every_module_says_what_it_owns(module: str) -> None:
    path = module_files()[module]
    source = path.read_text(encoding="utf-8")
    if path.name == "__init__.py" and not source.strip():
        return
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring and len(docstring.split()) >= 5


def test_every_signature_is_annotated() -> None:
    bare = []
    for module, path in module_files().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            named = [a for a in arguments if a.arg not in ("self", "cls")]
            if node.returns is None or any(a.annotation is None for a in named):
                bare.append(f"{module}:{node.lineno} {node.name}")
    assert not bare


def test_no_module_shadows_the_standard_library_or_a_builtin() -> None:
    taken = set(sys.stdlib_module_names) | set(dir(builtins))
    allowed = {"trainer_core.data.tokens.open_files"}
    names = {module: module.rpartition(".")[2] for module in module_files()}
    assert not {module for module, name in names.items() if name in taken and module not in allowed}


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("path of a machine", MACHINE_PATH),
        ("registry", REGISTRY),
        ("outside", OUTSIDE),
        ("unfinished", UNFINISHED),
    ],
)
def test_files_hold_no(name: str, pattern: re.Pattern[str]) -> None:
    assert not _lines(pattern), name


def test_the_patterns_find_what_they_are_for() -> None:
    assert MACHINE_PATH.search('open("/home/ann/data")') and MACHINE_PATH.search("cd /" + "work/line")
    assert not MACHINE_PATH.search("https://host/work/x") and not MACHINE_PATH.search("~/work/x")
    assert REGISTRY.search("pip install --index-url https://host") and OUTSIDE.search("see ../shared/x")
    assert UNFINISHED.search("# TODO: later")
