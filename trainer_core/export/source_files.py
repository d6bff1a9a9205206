"""Our own source files as modelling code: the closure of one module's imports, flattened into one folder.

Nothing is written a second time: files go along as they are, but for their imports of each other, which
become relative. What a function imports only when it is called stays behind, probes and Triton kernels among
it: an error stands in its place, and every comparison with "cuda" becomes False, so that everything computes
as on a CPU. Reads sources, imports none of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

_PACKAGE = "trainer_core"
_HOME = Path(__file__).parents[1]
_HEAD = "# Part of nstrain (Apache-2.0). `nstrain export` put it here and made its imports relative.\n"


def flat_name(module: str) -> str:
    """Name of a module's file in the folder, without its ending."""
    return module.replace(_PACKAGE, "nstrain", 1).replace(".", "_")


def needed_sources(root: str) -> dict[str, str]:
    """File name and text of `root` and of everything of ours that it imports with itself."""
    texts: dict[str, str] = {}
    waiting = [root]
    while waiting:
        module = waiting.pop()
        if flat_name(module) not in texts:
            source = _Source.read(module)
            texts[flat_name(module)] = source.rewritten()
            waiting += source.needs()
    return {f"{name}.py": texts[name] for name in sorted(texts)}


def _file(module: str) -> Path | None:
    """The file of a module of ours."""
    path = _HOME.joinpath(*module.split(".")[1:])
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


@dataclass(frozen=True, kw_only=True)
class _Edit:
    """Bytes to replace."""

    start: int
    """The first byte."""
    end: int
    """The byte after the last one."""
    text: str
    """What stands there instead."""


@dataclass(frozen=True)
class _Source:
    """One file of ours."""

    module: str
    """Dotted name."""
    data: bytes
    """Its content."""
    tree: ast.Module
    """Its syntax."""

    @classmethod
    def read(cls, module: str) -> _Source:
        path = _file(module)
        assert path is not None, f"{module} has no file"
        data = path.read_bytes()
        return cls(module, data, ast.parse(data))

    def needs(self) -> list[str]:
        """Modules of ours that it imports when it is imported itself."""
        early = [node for node in self.tree.body if isinstance(node, ast.ImportFrom) and _ours(node)]
        return [target for node in early for target in _targets(node).values()]

    def rewritten(self) -> str:
        """Its text as it goes along."""
        data = self.data
        edits = [self._edit(node, text) for node in _parts(self.tree) if (text := self._instead(node))]
        for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
            data = data[: edit.start] + edit.text.encode("utf-8") + data[edit.end :]
        text = _HEAD + data.decode("utf-8")
        compile(text, flat_name(self.module), "exec")
        return text

    def _instead(self, node: ast.AST) -> str | None:
        """What stands in place of a statement or an expression; None: itself."""
        if isinstance(node, ast.If) and _for_type_checkers(node):
            return "pass"
        if isinstance(node, ast.Compare) and any(_is_cuda(part) for part in node.comparators):
            assert len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq), f"{self.module}:{node.lineno}"
            return "False"
        if not isinstance(node, ast.ImportFrom) or not _ours(node):
            return None
        if node not in self.tree.body:
            return 'raise NotImplementedError("this is not part of an exported model")'
        return _relative(node)

    def _edit(self, node: ast.AST, text: str) -> _Edit:
        assert isinstance(node, ast.stmt | ast.expr)
        assert node.end_lineno is not None and node.end_col_offset is not None
        lines = self.data.splitlines(keepends=True)
        starts = [0, *accumulate(map(len, lines))]
        return _Edit(
            start=starts[node.lineno - 1] + node.col_offset,
            end=starts[node.end_lineno - 1] + node.end_col_offset,
            text=text.replace("\n", "\n" + " " * node.col_offset),
        )


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Every part of the syntax, but nothing that only type checkers read."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not (isinstance(child, ast.If) and _for_type_checkers(child)):
            yield from _parts(child)


def _for_type_checkers(node: ast.If) -> bool:
    found = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    assert not (found and node.orelse)
    return found


def _is_cuda(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "cuda"


def _ours(node: ast.ImportFrom) -> bool:
    return node.level == 0 and (node.module or "").split(".")[0] == _PACKAGE


def _targets(node: ast.ImportFrom) -> dict[str, str]:
    """The module that each imported name is or comes from."""
    base = node.module or ""
    found = {}
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        found[alias.name] = inner if _file(inner) else base
    return found


def _relative(node: ast.ImportFrom) -> str:
    """The same import among flattened files."""
    lines, values = [], []
    for alias in node.names:
        target = _targets(node)[alias.name]
        named = f" as {alias.asname}" if alias.asname else ""
        if target == node.module:
            values.append(f"{alias.name}{named}")
        else:
            lines.append(f"from . import {flat_name(target)} as {alias.asname or alias.name}")
    if values:
        lines.append(f"from .{flat_name(node.module or '')} import {', '.join(values)}")
    return "\n".join(lines)
