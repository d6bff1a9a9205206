"""The process that measures one shape: a real one, and every way in which one can end."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.tools.run_json import run_json
from trainer_core.line.config import parse_run
from trainer_core.measure import trial
from trainer_core.measure.candidates import Candidate
from trainer_core.measure.trial_process import ask

MODEL = {"layers": 1, "width": 16, "heads": 2, "ffn": 32}


def request(room: int, **changes) -> dict:
    """Updates of 7 rows of 16 in micro-batches of 3."""
    model = {"name": "llama-nano-cpu", "family": "llama", "vocab_size": 64, "config": MODEL}
    config = parse_run(run_json(model=model, tokens_per_update=112, **changes), Path("run.json"))
    shape = Candidate(length=16, rows=3, ac="full")
    return {
        "what": "measure",
        "run": config.dump(),
        "shape": asdict(shape),
        "room_bytes": room,
        "seconds": 0.05,
    }


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_process_measures_a_shape() -> None:
    found = ask(request(room=8 << 30), timeout_seconds=300)
    assert found.keys() == {"tokens_per_second", "peak_bytes"}, found
    assert found["tokens_per_second"] > 0
    assert 50 << 20 < found["peak_bytes"] < 8 << 30


def test_a_shape_beyond_its_room_is_out_of_memory() -> None:
    assert ask(request(room=64 << 10), timeout_seconds=300) == {"problem": "out of memory"}


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os; os.kill(os.getpid(), 9)", "crashed: SIGKILL, as the system does when memory runs out"),
        ("import os; os.abort()", "crashed: SIGABRT"),
        ("raise ValueError('no such kernel')", "crashed: exit code 1: ValueError: no such kernel"),
        (
            "raise MemoryError('no room\\n\\nSet VERBOSE=1: for more')",
            "crashed: exit code 1: MemoryError: no room",
        ),
        (
            "import sys; print('a library complains\\nonce more', file=sys.stderr); sys.exit(1)",
            "crashed: exit code 1: once more",
        ),
        ("raise AssertionError", "crashed: exit code 1: AssertionError"),
        ("print('a library says hello')", "crashed: exit code 0"),
        ("print('[1]')", "crashed: exit code 0"),
        ("print('{\"peak_bytes\": 1}'); raise SystemExit(3)", "crashed: exit code 3"),
    ],
)
def test_a_process_that_ends_without_an_answer(code: str, problem: str) -> None:
    assert ask({"what": "device"}, command=python(code), timeout_seconds=60) == {"problem": problem}


def test_the_answer_is_the_last_line() -> None:
    code = "import sys, json; print('hello'); print(json.dumps(json.loads(sys.stdin.read())))"
    assert ask({"what": "device"}, command=python(code), timeout_seconds=60) == {"what": "device"}


def test_a_silent_process_is_ended_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)"
    )
    assert ask({}, command=python(code), timeout_seconds=5) == {"problem": "did not end within 5 seconds"}
    for _ in range(200):
        if not any(_runs(int(pid)) for pid in pids.read_text().split()):
            break
        time.sleep(0.05)
    assert not any(_runs(int(pid)) for pid in pids.read_text().split())


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_what_counts_as_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: BaseException):
        def measure(*_: object) -> dict:
            raise error

        monkeypatch.setattr(trial, "measure", measure)
        monkeypatch.setattr(trial, "_stay_within", lambda room: None)
        return trial.answer(request(room=1 << 30))

    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"),
    ):
        assert fails(error) == {"problem": "out of memory"}
    with pytest.raises(RuntimeError, match="shapes"):
        fails(RuntimeError("shapes cannot be multiplied"))


def test_this_host() -> None:
    found = trial.look_at(torch.device("cpu"))
    assert found["kind"] == "cpu" and 0 < found["free_bytes"] <= found["total_bytes"]
    assert found["total_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
