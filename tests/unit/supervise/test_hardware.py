"""A device that fails, and processes that a dead trainer leaves behind on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tools.standin_line import make_line, standin_command
from trainer_core.line.files import read_jsonl
from trainer_core.line.identity import ProcessIdentity
from trainer_core.line.ledger import live_rows
from trainer_core.line.lock import held
from trainer_core.line.paths import LinePaths
from trainer_core.supervise.backoff import Policy
from trainer_core.supervise.outcome import Verdict
from trainer_core.supervise.reading import ATTEMPT_LINE, last_error
from trainer_core.supervise.record import read_record
from trainer_core.supervise.session import Session
from trainer_core.supervise.watch import end_group

FAST = Policy(backoff_seconds=0.0, gpu_poll_seconds=0.0, poll_seconds=0.02, term_seconds=0.3)

AFTER = """CUDA kernel errors might be asynchronously reported at some other API call, so look elsewhere.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""

ERRORS = {
    "ecc": (
        'Traceback (most recent call last):\n  File "loop.py", line 3, in run\n    step()\n'
        f"torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n{AFTER}\n",
        "uncorrectable ECC error encountered",
    ),
    "launch": (
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nKeyError: 3\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 2, in <module>\n'
        f"RuntimeError: CUDA error: unspecified launch failure\n{AFTER}",
        "RuntimeError: CUDA error: unspecified launch failure",
    ),
    "aborted": (
        "terminate called after throwing an instance of 'c10::AcceleratorError'\n"
        f"  what():  CUDA error: device is lost (Xid 79)\n{AFTER}frame #0: c10::Error::Error\n",
        "device is lost (Xid 79)",
    ),
    "no traceback": ("NVRM: Xid 79, GPU has fallen off the bus.\n", "Xid 79, GPU has fallen off the bus."),
    "nothing": ("", "from update 0"),
}


def run(paths: LinePaths, policy: Policy = FAST) -> list[Verdict]:
    session = Session(paths.root, cycles=1, by="test", policy=policy, command=standin_command)
    verdicts = [session.attempt()]
    while verdicts[-1].retry:
        verdicts.append(session.attempt())
    return verdicts


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_is_told_by_the_line_that_names_it(tmp_path: Path, kind: str) -> None:
    text, words = ERRORS[kind]
    log = tmp_path / "run.log"
    log.write_text(f"{ATTEMPT_LINE}3 ---\nresumed from update 0\n{text}")
    assert words in last_error(log) and "DSA" not in last_error(log)


def test_a_device_that_fails_at_every_start_ends_the_line_with_its_words(tmp_path: Path) -> None:
    """Case H07, first part: five failures without progress, and what is told names the error."""
    text, words = ERRORS["ecc"]
    acts = [{"attempt": None, "update": 0, "do": {"say": text, "code": 1}}]
    paths = make_line(tmp_path / "line", acts=acts)
    verdicts = run(paths)
    assert [v.outcome.status for v in verdicts] == ["crashed"] * 4 + ["stuck"]
    told = read_jsonl(paths.events)[-1]
    assert told["kind"] == "stuck" and words in told["message"]
    assert words in read_record(paths).reason


def test_a_device_that_fails_now_and_then_does_not_end_the_line(tmp_path: Path) -> None:
    """Case H07, second part: updates between failures begin the count anew."""
    text, words = ERRORS["ecc"]
    acts = [{"attempt": n, "update": 4 * n + 1, "do": {"say": text, "code": 1}} for n in (1, 2)]
    paths = make_line(tmp_path / "line", seconds=0.0, acts=acts)
    verdicts = run(paths, Policy(backoff_seconds=0.0, poll_seconds=0.02, term_seconds=0.3, max_failures=2))
    assert [v.outcome.status for v in verdicts] == ["crashed"] * 2 + ["finished"]
    assert all(words in v.message and "failure 1 of 2" in v.message for v in verdicts[:-1])


def test_words_of_an_earlier_attempt_are_not_those_of_this_one(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    assert last_error(log) == ""
    log.write_text(f"{ATTEMPT_LINE}1 ---\n{ERRORS['ecc'][0]}{ATTEMPT_LINE}2 ---\nupdate 4\nupdate 5\n")
    assert last_error(log) == "update 5"
    log.write_text(f"{ATTEMPT_LINE}1 ---\n{ERRORS['ecc'][0]}{ATTEMPT_LINE}2 ---\n")
    assert last_error(log) == ""


def _child(paths: LinePaths) -> ProcessIdentity | None:
    return ProcessIdentity.of(int((paths.root / "child").read_text()))


def test_children_of_a_killed_trainer_end_before_the_next_start(tmp_path: Path) -> None:
    """Case H09: the child has the locks and ignores what is polite; the line goes on and waits for nobody."""
    acts = [{"attempt": 1, "update": 5, "do": "start a child"}, {"attempt": 1, "update": 5, "do": "SIGKILL"}]
    paths = make_line(tmp_path / "line", acts=acts)
    verdicts = run(paths)
    assert [v.outcome.status for v in verdicts] == ["crashed", "finished"]
    kinds = [row["kind"] for row in read_jsonl(paths.events)]
    assert kinds == ["launched", "backoff", "launched", "finished"]
    assert _child(paths) is None
    assert [row["update"] for row in live_rows(paths.metrics)] == list(range(1, 11))
    assert not held(paths.lock)


def test_a_trainer_that_ends_well_leaves_nothing_either(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line", acts=[{"attempt": 1, "update": 10, "do": "start a child"}])
    assert [v.outcome.status for v in run(paths)] == ["finished"]
    assert _child(paths) is None and not held(paths.lock)


def test_children_of_a_trainer_that_died_with_its_supervisor_end_at_the_next_start(tmp_path: Path) -> None:
    hold = {"update": 3, "until": str(tmp_path / "never")}
    paths = make_line(tmp_path / "line", hold=hold, acts=[{"attempt": 1, "update": 3, "do": "start a child"}])
    supervisor = subprocess.Popen([sys.executable, "-c", _SUPERVISE, str(paths.root)])
    end = time.monotonic() + 60
    while not (paths.root / "child").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    trainer = read_record(paths).trainer
    assert trainer is not None
    for pid in (supervisor.pid, trainer.pid):
        os.kill(pid, signal.SIGKILL)
    supervisor.wait()
    (tmp_path / "never").touch()
    assert _child(paths) is not None and held(paths.lock)
    assert [v.outcome.status for v in run(paths)] == ["finished"]
    assert _child(paths) is None and not held(paths.lock)


_SUPERVISE = """
import sys
from pathlib import Path
sys.path.insert(0, ROOT)
from tests.tools.standin_line import standin_command
from trainer_core.supervise.session import Session
Session(Path(sys.argv[1]), cycles=1, by="test", command=standin_command).attempt()
""".replace("ROOT", repr(str(Path(__file__).parents[3])))


def test_a_group_that_is_gone() -> None:
    gone = subprocess.Popen(["true"], start_new_session=True)
    gone.wait()
    assert end_group(gone.pid, policy=FAST)
