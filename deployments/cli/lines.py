"""The verbs that change a training line: new, run, stop.

Each is one call of trainer_core and what a person sees of it. What only looks is in `questions.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve
from trainer_core.line.paths import LinePaths
from trainer_core.line.stop import StopRequest, read_stop, request_stop

Flag = Annotated[bool, Parameter(negative="")]


def _say(message: str) -> None:
    print(message, flush=True)


def new(
    run: Path,
    /,
    *,
    model: str,
    data: Path,
    peak_lr: float,
    tokens_per_update: str | None = None,
    weight_decay_batch: str | None = None,
    ema_horizon_tokens: str | None = None,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> int:
    """Make a training line: its directory, run.json, and its entry in the data line.

    Parameters
    ----------
    run
        Directory of the new line; a relative one is made in the current directory.
    model
        Model preset (see `nstrain models`).
    data
        Data line that feeds it.
    peak_lr
        Learning rate after the warm-up.
    tokens_per_update
        Tokens of an optimizer update; the preset's when left out. A number, or pieces of a ramp by the
        tokens trained: '[{"from": 0, "to": 4.7e9, "tokens": 262144}, {"from": 4.7e9, "to": null, ...}]'
    weight_decay_batch
        Tokens of an update at which the weight decay is the one in run.json; others have it in proportion.
    ema_horizon_tokens
        Keep a moving average of the parameters that looks back this many tokens, begun after as many;
        --set ema.from_tokens=N begins it elsewhere.
    set
        key=value for any key of run.json, dotted, with a JSON value: --set optimizer.clip=0.5
    """
    load_host()
    from trainer_core.ops.check import updates_text
    from trainer_core.ops.new import new_line
    from trainer_core.schedule.tokens import parse_tokens

    problems: list[str] = []

    def given(option: str, text: str | None, parse: Callable[[str], Any]) -> Any:
        try:
            return None if text is None else parse(text)
        except (ValueError, RecursionError) as error:
            problems.append(f"{option}: {error}")

    batch = given("--tokens-per-update", tokens_per_update, _batch)
    decay_batch = given("--weight-decay-batch", weight_decay_batch, parse_tokens)
    horizon = given("--ema-horizon-tokens", ema_horizon_tokens, parse_tokens)
    if problems:
        raise Refused(problems)
    line = run.expanduser().absolute()
    config = new_line(
        line,
        model=model,
        data=resolve(data),
        peak_lr=peak_lr,
        tokens_per_update=batch,
        weight_decay_batch=decay_batch,
        ema_horizon_tokens=horizon,
        settings=set,
    )
    _say(f"{line}: {config.model.name}, {updates_text(config)}")
    command = f"nstrain run {shlex.quote(str(line))}"
    if config.end_tokens is None:
        _say(
            "the schedule has no end: the line trains until it is stopped or its data is used up; "
            f"{command} --cycles N ends after N cycles, and so does an end in the schedule (see docs/data.md)"
        )
    _say(f"next: {command}")
    return 0


def _batch(text: str) -> int | list[Any]:
    """A token count, or the list of pieces that JSON text holds; what is wrong in a piece, run.json says."""
    from trainer_core.line.files import parse_json
    from trainer_core.schedule.tokens import parse_tokens

    if not text.lstrip().startswith("["):
        return parse_tokens(text)
    pieces = parse_json(text)
    assert isinstance(pieces, list)
    return pieces


def run(
    run: Path,
    /,
    *,
    cycles: int | None = None,
    foreground: Flag = False,
    inline: Flag = False,
    no_wait: Flag = False,
) -> int:
    """Run or continue a line: as a run of deployment trunk/trunk, or with --inline in this process.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    cycles
        Stop when cycles 0 to N-1 are trained in all.
    foreground
        Follow the run and exit with its code; Ctrl-C asks for a stop, a second one detaches.
    inline
        Train here, without Prefect.
    no_wait
        With --inline: end with code 30 instead of preparing data.
    """
    load_host()
    problems = []
    if cycles is not None and cycles < 1:
        problems.append(f"--cycles {cycles}: expected at least 1")
    if inline and foreground:
        problems.append("--inline and --foreground: give one; an inline run is in the foreground already")
    if no_wait and not inline:
        problems.append("--no-wait: goes with --inline")
    if problems:
        raise Refused(problems)
    line = resolve(run)
    if inline:
        from trainer_core.ops.run import run_inline

        code, message = run_inline(line, cycles=cycles, wait=not no_wait, say=_say)
        _say(message)
        return code
    from deployments.follow import follow, submit
    from trainer_core.ops.check import check_line

    check_line(line)
    started = submit(line, cycles)
    _say(f"{started.name} is submitted: {started.url}")
    return follow(started, line, say=_say) if foreground else 0


def stop(run: Path, /, *, at_cycle_end: int | None = None, at_update: int | None = None) -> int:
    """Stop a line with a checkpoint: at the next update, at the end of a cycle, or at an update.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    at_cycle_end
        Stop when this cycle is trained; cycles count from 0.
    at_update
        Stop when this many updates are done.
    """
    load_host()
    bounds = {"--at-cycle-end": at_cycle_end, "--at-update": at_update}
    problems = [f"{name} {n}: expected at least 0" for name, n in bounds.items() if n is not None and n < 0]
    if at_cycle_end is not None and at_update is not None:
        problems.append("--at-cycle-end and --at-update: give one of them")
    if problems:
        raise Refused(problems)
    paths = LinePaths(resolve(run))
    earlier = read_stop(paths)
    request = request_stop(paths, at_cycle_end=at_cycle_end, at_update=at_update, by="nstrain stop")
    if request is None:
        _say(f"{paths.root}: does not run; nothing to stop")
        return 0
    _say(f"{paths.root}: stops {_when(paths, request)}, with a checkpoint")
    if earlier is not None:
        _say(f"  instead of {_bound(earlier)}, as was asked before")
    return 0


def _bound(request: StopRequest) -> str:
    """The point that a request names."""
    if request.at_cycle_end is not None:
        return f"at the end of cycle {request.at_cycle_end}"
    return "at the next update" if request.at_update is None else f"at update {request.at_update}"


def _when(paths: LinePaths, request: StopRequest) -> str:
    """Where a running line stops for a request, as far as its files tell."""
    from trainer_core.line.status import line_status

    now = line_status(paths.root)
    update, cycle = now["update"], max(now["cycle"], now["cycles_done"])
    if request.at_update is not None and update >= request.at_update:
        return f"at the next update: update {request.at_update} is already past (the line is at {update})"
    if request.at_cycle_end is not None and cycle > request.at_cycle_end:
        return (
            f"at the next cycle's end: cycle {request.at_cycle_end} is already past (the line is in {cycle})"
        )
    return _bound(request)
