"""Kills a process at its n-th file operation, or records all of them.

Works in a forked child of the test: the file functions of `os` and `open` for writing are wrapped, so every
name that appears, changes or vanishes on disk is an operation that can be the last one.
"""

import builtins
import os
import signal
from collections.abc import Callable
from typing import Any

_OPERATIONS = ("rename", "replace", "fsync", "unlink", "remove", "mkdir", "rmdir", "write", "ftruncate")


_PLAIN_WRITE = os.write


def run_killed(work: Callable[[], object], at: int) -> bool:
    """Run `work` in a child that dies by SIGKILL before its `at`-th file operation; False: it ended first."""
    left = at

    def due(_name: str, _path: str) -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return run_killed_when(work, due)


def run_killed_when(work: Callable[[], object], due: Callable[[str, str], bool]) -> bool:
    """Run `work` in a child that dies by SIGKILL before the first file operation that is `due`.

    `due` gets the operation's name and path, in the child. False: the work ended first.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:

            def die_if_due(name: str, path: str) -> None:
                if due(name, path):
                    os.kill(os.getpid(), signal.SIGKILL)

            _wrap(die_if_due)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
    return False


def run_alone(work: Callable[[], object]) -> None:
    """Run `work` in a child without any fault; it must succeed."""
    assert not run_killed(work, 1 << 62)


def count_operations(work: Callable[[], object]) -> int:
    """Run `work` in a child and count its file operations: `run_killed` reaches every smaller number."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code, seen = 1, 0
        try:

            def count(_name: str, _path: str) -> None:
                nonlocal seen
                seen += 1

            _wrap(count)
            work()
            code, total = 0, str(seen).encode()
            _PLAIN_WRITE(writer, total)
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        total = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the work failed by itself"
    return int(total)


def trace(work: Callable[[], object], monkeypatch: Any) -> list[tuple[str, str, int]]:
    """Run `work` here and record (operation, path, size of the file at that moment)."""
    rows: list[tuple[str, str, int]] = []

    def record(name: str, path: str) -> None:
        size = os.stat(path).st_size if os.path.isfile(path) else -1
        rows.append((name, path, size))

    _wrap(record, monkeypatch)
    try:
        work()
    finally:
        monkeypatch.undo()
    return rows


def _wrap(hook: Callable[[str, str], None], monkeypatch: Any = None) -> None:
    def replace(owner: Any, name: str, value: Any) -> None:
        if monkeypatch is None:
            setattr(owner, name, value)
        else:
            monkeypatch.setattr(owner, name, value)

    def wrapped(name: str, original: Any) -> Any:
        def call(target: Any, *args: Any, **kwargs: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)
            hook(name, str(path))
            return original(target, *args, **kwargs)

        return call

    for name in _OPERATIONS:
        replace(os, name, wrapped(name, getattr(os, name)))
    plain_open = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | os.PathLike) and set(mode) & set("wax+"):
            hook("open", str(os.fspath(file)))
        return plain_open(file, mode, *args, **kwargs)

    replace(builtins, "open", opened)


def run_failing(work: Callable[[], object], at: int, error: int, monkeypatch: Any) -> OSError | None:
    """Run `work` here with its `at`-th file operation failing by `error`; the OSError that it raised."""
    left = at

    def fail_if_due(_name: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise OSError(error, os.strerror(error), path)

    _wrap(fail_if_due, monkeypatch)
    try:
        work()
    except OSError as raised:
        return raised
    finally:
        monkeypatch.undo()
    return None
