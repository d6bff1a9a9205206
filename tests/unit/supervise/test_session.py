"""Supervision of real processes: signals, exit codes, silence, stops, orphans, two lines on one device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tools.standin_line import make_line, standin_command
from trainer_core.errors import OUTCOMES, Refused
from trainer_core.line.checkpoints import list_checkpoints
from trainer_core.line.files import read_json, read_jsonl, write_json
from trainer_core.line.identity import ProcessIdentity
from trainer_core.line.ledger import Ledger, live_rows
from trainer_core.line.lock import FileLock, held
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import read_stop, request_stop
from trainer_core.supervise import lease
from trainer_core.supervise.backoff import Policy
from trainer_core.supervise.outcome import Verdict
from trainer_core.supervise.reading import newest_update
from trainer_core.supervise.record import SupervisorRecord, read_record, write_record
from trainer_core.supervise.session import Session
from trainer_core.supervise.spawn import rotate

FAST = Policy(backoff_seconds=0.0, gpu_poll_seconds=0.0, poll_seconds=0.02, term_seconds=0.3)


def session_of(paths: LinePaths, *, cycles: int | None = 1, policy: Policy = FAST) -> Session:
    return Session(paths.root, cycles=cycles, by="test", policy=policy, command=standin_command)


def run(session: Session) -> list[Verdict]:
    """Drive a session to its final verdict, as the Prefect task does."""
    verdicts = [session.attempt()]
    while verdicts[-1].retry:
        verdicts.append(session.attempt())
    return verdicts


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def kinds(paths: LinePaths) -> list[str]:
    return [row["kind"] for row in read_jsonl(paths.events)]


@pytest.fixture
def background() -> Iterator[Callable[[Session], threading.Thread]]:
    """Runs sessions on threads; at the end of the test nothing of them is left."""
    sessions: list[tuple[Session, threading.Thread]] = []

    def go(session: Session) -> threading.Thread:
        thread = threading.Thread(target=run, args=(session,))
        thread.start()
        sessions.append((session, thread))
        return thread

    yield go
    for session, thread in sessions:
        session.abandon()
        record = read_record(session.paths)
        if record.trainer is not None and record.trainer.alive():
            os.kill(record.trainer.pid, signal.SIGKILL)
        thread.join()


def test_a_clean_run_finishes_and_gives_everything_back(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line")
    session = session_of(paths)
    (verdict,) = run(session)
    assert (verdict.outcome.state_name, verdict.retry) == ("Finished", False)
    assert newest_update(paths) == 10
    assert not held(paths.lock) and not held(lease.lease_path("cpu"))
    record = read_record(paths)
    assert (record.state, record.launches, record.failures) == ("ended", 1, 0)
    assert record.outcome is not None and record.outcome["name"] == "Finished"
    assert kinds(paths) == ["launched", "finished"]
    assert read_json(paths.wanted)["wanted"] == "running"
    assert "stand-in trainer, attempt 1, from update 0, 2 locks" in paths.run_log.read_text()


def test_a_killed_trainer_is_started_again_and_loses_only_unsaved_updates(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line", acts=[{"attempt": 1, "update": 7, "do": "SIGKILL"}])
    verdicts = run(session_of(paths))
    assert [v.outcome.status for v in verdicts] == ["crashed", "finished"]
    assert "SIGKILL" in verdicts[0].message
    rows = read_jsonl(paths.metrics)
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 9, 10]
    assert [row["update"] for row in live_rows(paths.metrics)] == list(range(1, 11))
    assert kinds(paths) == ["launched", "backoff", "launched", "finished"]
    assert "from update 4" in paths.run_log.read_text()


def test_stuck_after_five_failures_without_progress(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line", acts=[{"attempt": None, "update": 6, "do": 3}])
    verdicts = run(session_of(paths))
    assert [v.outcome.status for v in verdicts] == ["crashed"] * 4 + ["stuck"]
    assert read_record(paths).failures == 5
    assert not held(paths.lock)


def test_failures_survive_the_supervisor_but_not_a_new_start_by_a_person(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line", acts=[{"attempt": None, "update": 6, "do": 3}])
    write_record(paths, SupervisorRecord(failures=3, failure_update=6, launches=3))
    assert [v.outcome.status for v in run(session_of(paths))] == ["crashed", "stuck"]
    assert len(run(session_of(paths))) == 5


def test_line_own_guards_set_the_limits(tmp_path: Path) -> None:
    acts = [{"attempt": None, "update": 6, "do": 3}]
    paths = make_line(tmp_path / "line", guards={"max_failures": 2}, acts=acts)
    session = Session(paths.root, cycles=1, by="test", command=standin_command)
    assert [v.outcome.status for v in run(session)] == ["crashed", "stuck"]


@pytest.mark.parametrize(
    ("code", "name"), [(20, "Refused"), (32, "DiskFull"), (33, "DataUsedUp"), (40, "NonFinite")]
)
def test_final_codes_are_not_retried(tmp_path: Path, code: int, name: str) -> None:
    paths = make_line(tmp_path / "line", acts=[{"attempt": None, "update": 2, "do": code}])
    (verdict,) = run(session_of(paths))
    assert (verdict.outcome.state_name, verdict.retry) == (name, False)


def test_foreign_sigterm_is_a_retry_that_does_not_count(
    tmp_path: Path, background: Callable[[Session], threading.Thread]
) -> None:
    paths = make_line(tmp_path / "line", updates_per_cycle=40)
    session = session_of(paths)
    thread = background(session)
    until(lambda: newest_update(paths) >= 5)
    trainer = read_record(paths).trainer
    assert trainer is not None
    os.kill(trainer.pid, signal.SIGTERM)
    thread.join()
    assert session.verdict is not None and session.verdict.outcome.status == "finished"
    record = read_record(paths)
    assert (record.launches, record.failures) == (2, 0)
    assert [row["update"] for row in read_jsonl(paths.metrics)] == list(range(1, 41))


@pytest.mark.parametrize("how", ["hang", "hang hard"])
def test_a_silent_trainer_is_ended_and_counted(tmp_path: Path, how: str) -> None:
    guards = {"heartbeat_timeout_seconds": 1.0}
    paths = make_line(tmp_path / "line", guards=guards, acts=[{"attempt": 1, "update": 5, "do": how}])
    verdicts = run(session_of(paths))
    assert [v.outcome.status for v in verdicts] == ["crashed", "finished"]
    assert "heartbeat" in verdicts[0].message
    assert "hung" in kinds(paths)
    if how == "hang hard":
        assert "SIGKILL" in verdicts[0].message


def test_heartbeat_of_another_process_does_not_count(tmp_path: Path) -> None:
    guards = {"heartbeat_timeout_seconds": 1.0}
    paths = make_line(tmp_path / "line", guards=guards, acts=[{"attempt": 1, "update": 0, "do": "hang"}])
    beat = {"time": 0.0, "update": 3, "stage": "training", **ProcessIdentity.current().to_dict()}
    session = session_of(paths)
    stop = threading.Event()

    def keep_beating() -> None:
        while not stop.wait(0.05):
            if "launched" in kinds(paths) and "hung" not in kinds(paths):
                write_json(paths.heartbeat, {**beat, "monotonic": time.monotonic()})

    thread = threading.Thread(target=keep_beating)
    thread.start()
    try:
        assert [v.outcome.status for v in run(session)] == ["crashed", "finished"]
    finally:
        stop.set()
        thread.join()


def test_a_program_that_cannot_start_counts_and_is_explained(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line", guards={"max_failures": 2})
    policy = Policy(backoff_seconds=0.0, max_failures=2)
    session = Session(
        paths.root, cycles=1, by="test", policy=policy, command=lambda launch: ["/nonexistent/python"]
    )
    assert [v.outcome.status for v in run(session)] == ["crashed", "stuck"]
    assert "/nonexistent/python" in paths.supervisor_out.read_text()


def test_a_broken_run_json_is_refused_with_every_problem(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line")
    run_json = read_json(paths.run_json)
    run_json["seed"] = "one"
    run_json["surprise"] = 1
    write_json(paths.run_json, run_json)
    (verdict,) = run(session_of(paths))
    assert verdict.outcome.state_name == "Refused"
    assert "seed" in verdict.message and "surprise" in verdict.message


def test_stop_ends_the_run_with_a_checkpoint(
    tmp_path: Path, background: Callable[[Session], threading.Thread]
) -> None:
    paths = make_line(tmp_path / "line", updates_per_cycle=1000)
    session = session_of(paths)
    thread = background(session)
    until(lambda: newest_update(paths) >= 5)
    assert request_stop(paths, by="test") is not None
    thread.join()
    assert session.verdict is not None and session.verdict.outcome.state_name == "Stopped"
    last = list_checkpoints(paths)[-1].update
    assert last == newest_update(paths)
    assert session.verdict.message == f"stop requested by test; checkpoint u{last}"
    assert kinds(paths) == ["launched", "stopped"], "the trainer has written the event, once"
    assert read_stop(paths) is None and not held(paths.lock)


def test_stop_during_a_backoff_starts_no_trainer(
    tmp_path: Path, background: Callable[[Session], threading.Thread]
) -> None:
    paths = make_line(tmp_path / "line", acts=[{"attempt": None, "update": 6, "do": 3}])
    session = session_of(paths, policy=Policy(backoff_seconds=3600.0, poll_seconds=0.02))
    thread = background(session)
    until(lambda: read_record(paths).state == "backoff")
    assert held(paths.lock), "a second start must be refused during a backoff"
    assert not held(lease.lease_path("cpu")), "another line may use the device meanwhile"
    request_stop(paths, by="test")
    thread.join()
    assert session.verdict is not None and session.verdict.outcome.state_name == "Stopped"
    assert read_record(paths).launches == 1 and read_stop(paths) is None


def test_a_driver_can_stop_the_line_for_its_own_reason(
    tmp_path: Path, background: Callable[[Session], threading.Thread]
) -> None:
    paths = make_line(tmp_path / "line", updates_per_cycle=1000)
    session = session_of(paths)
    thread = background(session)
    until(lambda: newest_update(paths) >= 5)
    session.stop_because(OUTCOMES[33], "source web is 7 tokens short")
    thread.join()
    assert session.verdict is not None and session.verdict.outcome.state_name == "DataUsedUp"
    assert session.verdict.message == "source web is 7 tokens short"
    outcome = read_record(paths).outcome
    assert outcome is not None and outcome["status"] == "data-used-up"


def test_attempts_go_on_from_the_ledger(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line")
    Ledger(paths.metrics, attempt=6).append("update", 1, {})
    run(session_of(paths))
    assert {row["attempt"] for row in read_jsonl(paths.metrics)} == {6, 7}


def test_a_stop_left_by_a_dead_run_is_not_obeyed_by_the_next(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line")
    write_json(paths.stop, {"format": "stop/1", "id": "x", "by": "cancel", "time": time.time() - 60})
    (verdict,) = run(session_of(paths))
    assert verdict.outcome.state_name == "Finished"


def test_a_stop_file_made_by_hand_holds_for_runs_that_were_asked_for_before_it(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line")
    paths.stop.touch()
    asked = Session(
        paths.root, cycles=1, by="test", policy=FAST, command=standin_command, asked_at=time.time() - 60
    )
    assert run(asked)[-1].outcome.state_name == "Stopped"
    assert newest_update(paths) == 0
    paths.stop.touch()
    os.utime(paths.stop, (time.time() - 3600,) * 2)
    assert run(session_of(paths))[-1].outcome.state_name == "Finished", "an hour old: for an earlier run"
    assert read_stop(paths) is None


def test_a_stop_between_the_request_of_a_run_and_its_start_holds(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line")
    request_stop(paths, by="test")
    early = Session(
        paths.root, cycles=1, by="test", policy=FAST, command=standin_command, asked_at=time.time() - 60
    )
    assert run(early)[-1].outcome.state_name == "Stopped"
    assert newest_update(paths) == 0 and not held(paths.lock)


def test_a_line_in_use_is_refused_and_left_alone(
    tmp_path: Path, background: Callable[[Session], threading.Thread]
) -> None:
    paths = make_line(tmp_path / "line", updates_per_cycle=1000)
    owner = subprocess.Popen(
        [sys.executable, "-c", _HOLD_LOCK, str(paths.lock)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        owner.stdout.readline()
        (verdict,) = run(session_of(paths))
        assert verdict.outcome.state_name == "Refused"
        assert f"being run by process {owner.pid} since 20" in verdict.message
        assert "nstrain stop" in verdict.message
        with pytest.raises(Refused, match=str(owner.pid)):
            lease.refuse_if_run(paths)
        assert not paths.supervisor.exists() and not paths.events.exists() and not paths.wanted.exists()
    finally:
        owner.kill()
        owner.wait()


def test_waits_for_the_device_while_another_line_trains(
    tmp_path: Path, background: Callable[[Session], threading.Thread]
) -> None:
    first = make_line(tmp_path / "first", updates_per_cycle=1000)
    second = make_line(tmp_path / "second")
    one, two = session_of(first), session_of(second)
    one_thread = background(one)
    until(lambda: newest_update(first) >= 1)
    two_thread = background(two)
    until(lambda: read_record(second).state == "awaiting-gpu")
    assert read_record(second).launches == 0
    assert kinds(second) == ["awaiting_gpu"]
    request_stop(first, by="test")
    one_thread.join()
    two_thread.join()
    assert two.verdict is not None and two.verdict.outcome.state_name == "Finished"


def test_an_orphaned_trainer_is_waited_for_and_never_doubled(
    tmp_path: Path, background: Callable[[Session], threading.Thread]
) -> None:
    paths = make_line(tmp_path / "line", updates_per_cycle=60, seconds=0.02, checkpoint_every=50)
    supervisor = subprocess.Popen([sys.executable, "-c", _SUPERVISE, str(paths.root)], env=_environment())
    until(lambda: newest_update(paths) >= 5)
    orphan = read_record(paths).trainer
    assert orphan is not None
    os.kill(orphan.pid, signal.SIGSTOP)  # an orphan that needs its time for the checkpoint
    supervisor.kill()
    supervisor.wait()
    session = session_of(paths)
    thread = background(session)
    time.sleep(0.5)
    assert session.idle.is_set() and read_record(paths).launches == 1
    lease.refuse_if_run(paths)
    os.kill(orphan.pid, signal.SIGCONT)
    thread.join()
    assert session.verdict is not None and session.verdict.outcome.state_name == "Finished"
    updates = [row["update"] for row in read_jsonl(paths.metrics)]
    assert updates == list(range(1, 61)), "the orphan's checkpoint was the resume point: nothing twice"
    assert read_record(paths).launches == 2


def test_an_orphan_that_hangs_is_ended(
    tmp_path: Path, background: Callable[[Session], threading.Thread]
) -> None:
    guards = {"heartbeat_timeout_seconds": 1.0}
    paths = make_line(
        tmp_path / "line", guards=guards, updates_per_cycle=30, checkpoint_every=2, seconds=0.02
    )
    supervisor = subprocess.Popen([sys.executable, "-c", _SUPERVISE, str(paths.root)], env=_environment())
    until(lambda: newest_update(paths) >= 5)
    orphan = read_record(paths).trainer
    assert orphan is not None
    os.kill(orphan.pid, signal.SIGSTOP)
    supervisor.kill()
    supervisor.wait()
    session = session_of(paths)
    background(session).join()
    assert not orphan.alive()
    assert session.verdict is not None and session.verdict.outcome.state_name == "Finished"


def test_a_reused_pid_is_not_taken_for_the_owner(tmp_path: Path) -> None:
    paths = make_line(tmp_path / "line")
    me = ProcessIdentity.current()
    stranger = {**me.to_dict(), "pid": os.getppid(), "start_time": "1"}
    write_json(paths.lock, {"format": "lock/1", **stranger, "role": "trunk", "since": time.time()})
    lease.refuse_if_run(paths)
    (verdict,) = run(session_of(paths))
    assert verdict.outcome.state_name == "Finished"


def test_abandoning_ends_a_wait(tmp_path: Path, background: Callable[[Session], threading.Thread]) -> None:
    paths = make_line(tmp_path / "line")
    lock = FileLock.acquire(lease.lease_path("cpu"), role="test")
    session = session_of(paths)
    thread = background(session)
    until(lambda: read_record(paths).state == "awaiting-gpu")
    session.abandon()
    thread.join()
    lock.release()
    assert session.verdict is not None and session.verdict.outcome.state_name == "Stopped"


def test_a_large_log_is_moved_aside(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(b"x" * 11)
    rotate(log, limit_bytes=11)
    assert log.exists()
    rotate(log, limit_bytes=10)
    assert not log.exists() and (tmp_path / "run.log.1").stat().st_size == 11


def test_record_keeps_what_it_does_not_know(tmp_path: Path) -> None:
    paths = LinePaths(tmp_path)
    written = SupervisorRecord(failures=2, failure_update=7, launches=3, trainer=ProcessIdentity.current())
    write_json(paths.supervisor, {**written.to_dict(), "newer": [1]})
    found = read_record(paths)
    assert found.trainer == written.trainer and (found.failures, found.failure_update) == (2, 7)
    write_record(paths, found)
    assert read_json(paths.supervisor)["newer"] == [1]


_HOLD_LOCK = """
import sys
from pathlib import Path
from trainer_core.line.lock import FileLock
lock = FileLock.acquire(Path(sys.argv[1]), role="inline")
print("held", flush=True)
sys.stdin.read()
"""

_SUPERVISE = """
import sys
from pathlib import Path
sys.path.insert(0, ROOT)
from tests.tools.standin_line import standin_command
from trainer_core.supervise.session import Session
Session(Path(sys.argv[1]), cycles=1, by="test", command=standin_command).attempt()
""".replace("ROOT", repr(str(Path(__file__).parents[3])))


def _environment() -> dict[str, str]:
    return dict(os.environ)
