"""What the architecture tests look at: the project's modules and what they import, read as syntax trees."""

from __future__ import annotations

import ast
import functools
import importlib.util
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("trainer_core", "tasks", "flows", "deployments")


@dataclass(frozen=True)
class Import:
    """One imported module."""

    target: str
    """Dotted name; for `from a import b` the module a.b when there is one, else a."""
    line: int
    """Line of the statement."""
    at_load: bool
    """Whether it happens when the module is imported, not when a function is called."""


def module_files() -> dict[str, Path]:
    """Dotted name and file of every module of the packages."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports_of(module: str) -> tuple[Import, ...]:
    """Everything a module imports, type-checking blocks left out."""
    files = module_files()
    return tuple(imports_in(files[module].read_text(encoding="utf-8"), module, set(files)))


def imports_in(source: str, module: str, known: set[str]) -> list[Import]:
    """The imports of a source text that belongs to `module`."""
    found: list[Import] = []

    def visit(node: ast.AST, at_load: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module, known)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.append(Import(full if full in known else base, node.lineno, at_load))
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            for child in node.orelse:
                visit(child, at_load)
            return
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, at_load and not inside)

    visit(ast.parse(source), True)
    return found


def _absolute(node: ast.ImportFrom, module: str, known: set[str]) -> str:
    """The dotted name behind `from`, relative ones included."""
    if not node.level:
        return node.module or ""
    is_package = any(name.startswith(f"{module}.") for name in known)
    package = module if is_package else module.rpartition(".")[0]
    return importlib.util.resolve_name("." * node.level + (node.module or ""), package)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def within(target: str, *packages: str) -> bool:
    """Whether a dotted name is one of the packages or lies below one."""
    return any(target == package or target.startswith(f"{package}.") for package in packages)


@functools.cache
def loads(module: str) -> dict[str, tuple[str, ...]]:
    """Every module that importing `module` imports, with one chain of our modules that leads to it.

    Packages above an imported module are imported too. Modules of others are not followed.
    """
    ours = module_files()
    chains: dict[str, tuple[str, ...]] = {}
    queue: list[tuple[str, tuple[str, ...]]] = [(module, ())]
    while queue:
        name, chain = queue.pop(0)
        if name in chains:
            continue
        chains[name] = chain
        if name not in ours:
            continue
        parents = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]
        for target in [*parents, *(entry.target for entry in imports_of(name) if entry.at_load)]:
            queue.append((target, (*chain, name)))
    return chains


def text_files() -> list[Path]:
    """Every text file that is, or would be, under version control."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    binary = {".png", ".npz", ".npy", ".gz", ".zst", ".parquet", ".safetensors"}
    files = [ROOT / name for name in names]
    return [path for path in files if path.suffix not in binary and path.is_file()]
