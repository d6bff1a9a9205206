"""The verbs of a training line: new, check, run, status, logs, stop, verify, models."""

from __future__ import annotations

import json as jsonlib
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve
from trainer_core.line.paths import LinePaths

Flag = Annotated[bool, Parameter(negative="")]


def _say(message: str) -> None:
    print(message, flush=True)


def _print_json(value: Any) -> None:
    print(jsonlib.dumps(value, indent=2))


def new(
    run: Path,
    *,
    model: str,
    data: Path,
    peak_lr: float,
    tokens_per_update: str | None = None,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> int:
    """Make a training line: its directory, run.json, and its entry in the data line.

    Parameters
    ----------
    run
        Directory of the new line.
    model
        Model preset (see `nstrain models`).
    data
        Data line that feeds it.
    peak_lr
        Learning rate after the warm-up.
    tokens_per_update
        Tokens of an optimizer update; the preset's when left out.
    set
        key=value for any key of run.json, dotted, with a JSON value: --set optimizer.clip=0.5
    """
    load_host()
    from trainer_core.ops.new import new_line
    from trainer_core.schedule.tokens import parse_tokens

    try:
        tokens = None if tokens_per_update is None else parse_tokens(tokens_per_update)
    except ValueError as error:
        raise Refused(f"--tokens-per-update: {error}") from None
    line = run.expanduser().absolute()
    config = new_line(
        line,
        model=model,
        data=resolve(data),
        peak_lr=peak_lr,
        tokens_per_update=tokens,
        settings=set,
    )
    _say(f"{line}: {config.model.name}, {config.tokens_per_update:,} tokens per update")
    _say(f"next: nstrain run {line}")
    return 0


def check(run: Path) -> int:
    """Make every check of a start, without training.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    """
    load_host()
    from trainer_core.ops.check import check_line

    for sentence in check_line(resolve(run)):
        _say(sentence)
    return 0


def run(
    run: Path,
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
    line = resolve(run)
    if inline:
        from trainer_core.ops.run import run_inline

        code, message = run_inline(line, cycles=cycles, wait=not no_wait, say=_say)
        _say(message)
        return code
    if no_wait:
        raise Refused("--no-wait goes with --inline")
    from deployments.follow import follow, submit
    from trainer_core.ops.check import check_line

    check_line(line)
    started = submit(line, cycles)
    _say(f"{started.name} is submitted: {started.url}")
    return follow(started, line, say=_say) if foreground else 0


def status(run: Path, *, watch: Flag = False, json: Flag = False) -> int:
    """Say where a line stands, from its files alone.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    watch
        Say it again every two seconds until Ctrl-C.
    json
        Print JSON.
    """
    load_host()
    from trainer_core.line.status import line_status

    while True:
        value = line_status(resolve(run))
        _print_json(value) if json else _say(_sentence(value))
        if not watch:
            return 0
        time.sleep(2.0)


def _sentence(value: dict[str, Any]) -> str:
    """A status in a few lines for people."""
    loss = value["loss"]
    rate = value["tokens_per_second"]
    mix = next((v for k, v in value["validation"].items() if k.endswith("/mix")), None)
    lines = [
        f"{value['line']}: {value['state']} ({value['reason']})",
        f"  update {value['update']}, {value['tokens']:,} tokens, cycle {value['cycle']}",
    ]
    if loss is not None:
        lines.append(f"  loss {loss:.4f}" + (f", validation mix {mix:.4f}" if mix is not None else ""))
    if rate:
        eta = value["eta_seconds"]
        lines.append(f"  {rate:,.0f} tokens/s" + (f", {eta / 3600:.1f} h to go" if eta else ""))
    points = value["checkpoints"]
    if points:
        lines.append("  checkpoints: " + ", ".join(f"u{p['update']}" for p in points))
    return "\n".join(lines)


def logs(run: Path, *, lines: int = 40) -> int:
    """Show the end of a line's log.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    lines
        Lines from the end.
    """
    load_host()
    path = LinePaths(resolve(run)).run_log
    if not path.exists():
        raise Refused(f"{path}: no log yet; the line has not been started")
    for line in path.read_text(errors="replace").splitlines()[-lines:]:
        _say(line)
    return 0


def stop(run: Path, *, at_cycle_end: int | None = None, at_update: int | None = None) -> int:
    """Stop a line with a checkpoint: at the next update, at the end of a cycle, or at an update.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    at_cycle_end
        Stop when this cycle is trained.
    at_update
        Stop when this many updates are done.
    """
    load_host()
    from trainer_core.line.stop import request_stop

    paths = LinePaths(resolve(run))
    request = request_stop(paths, at_cycle_end=at_cycle_end, at_update=at_update, by="nstrain stop")
    _say(f"{paths.root}: {'a stop is requested' if request else 'not running; it stays stopped'}")
    return 0


def verify(run: Path, *, json: Flag = False) -> int:
    """Compare every byte of every checkpoint with its hashes; exit code 20 when one is damaged.

    Parameters
    ----------
    run
        Directory of the line, or its name under work_root.
    json
        Print JSON.
    """
    load_host()
    from trainer_core.line.checkpoints import list_checkpoints
    from trainer_core.line.checkpoints import verify as verify_files

    found = [
        {"update": info.update, "ok": not problems, "problem": problems[0] if problems else None}
        for info in list_checkpoints(LinePaths(resolve(run)))
        for problems in [verify_files(info.path)]
    ]
    if json:
        _print_json(found)
    for row in [] if json else found:
        _say(f"u{row['update']}: {'sound' if row['ok'] else row['problem']}")
    return 0 if all(row["ok"] for row in found) else 20


def models(*, json: Flag = False) -> int:
    """List the model presets with exact counts.

    Parameters
    ----------
    json
        Print JSON.
    """
    load_host()
    from trainer_core.ops.models import list_models

    found = list_models()
    if json:
        _print_json(found)
    for row in [] if json else found:
        _say(f"{row['name']:16} {row['family']:8} {row['parameters']:>14,} parameters")
    return 0
