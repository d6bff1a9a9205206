"""The verbs of a data line (`nstrain data init|val|plan|prepare|delete`) and `nstrain sample`.

Each is one call of trainer_core and what a person sees of it; host settings are read first.
"""

from __future__ import annotations

import json as jsonlib
import shlex
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve

app = App(name="data", help="Make a data line and its cycles.")

Flag = Annotated[bool, Parameter(negative="")]


def _say(message: str) -> None:
    print(message, flush=True)


def _print_json(value: Any) -> None:
    print(jsonlib.dumps(value, indent=2))


def sample(*, out: Path, max_mb: int = 40, json: Flag = False) -> int:
    """Write a sample corpus with its recipe and tokenizer, from the packages installed here; no download.

    Parameters
    ----------
    out
        New folder of the sample.
    max_mb
        Million bytes of text, about.
    json
        Print sample.json instead of progress.
    """
    load_host()
    from trainer_core.data.sample import build_sample

    target = out.expanduser().absolute()
    facts = build_sample(target, max_mb=max_mb, progress=(lambda message: None) if json else _say)
    if json:
        _print_json({"out": str(target), **facts})
        return 0
    _say(f"{facts['documents']:,} documents, {facts['bytes'] / 1e6:.1f} MB of text in {target}")
    files = f"--recipe {_quoted(target / facts['recipe'])} --tokenizer {_quoted(target / facts['tokenizer'])}"
    _say(f"next: nstrain data init --work DATA {files} --eos-id {facts['eos_id']} --cycle-tokens 65536")
    return 0


@app.command
def init(
    *,
    work: Path,
    eos_id: int,
    cycle_tokens: str,
    recipe: Path | None = None,
    tokenizer: Path | None = None,
    calibration_from: Path | None = None,
    seed: int | None = None,
    json: Flag = False,
) -> int:
    """Pin files, tokenizer and shares, measure tokens per byte, and write the data line's data.json.

    Parameters
    ----------
    work
        Folder of the new data line.
    eos_id
        Id appended to every document.
    cycle_tokens
        Tokens per cycle, such as 65536 or 2e10.
    recipe
        recipe.json with sources and shares.
    tokenizer
        tokenizer.json; the host setting `tokenizer` when left out.
    calibration_from
        Data line whose measurements are taken over; the host setting of that name when left out.
    seed
        Seed of the line, instead of the recipe's.
    json
        Print the report as JSON.
    """
    host = load_host()
    from trainer_core.data.initialize import init_data_line
    from trainer_core.schedule.tokens import parse_tokens

    problems: list[str] = []
    tokens = 0
    try:
        tokens = parse_tokens(cycle_tokens)
    except ValueError as error:
        problems.append(f"--cycle-tokens: {error}")
    chosen_tokenizer = tokenizer or host.tokenizer
    calibration = calibration_from or host.calibration_from
    if chosen_tokenizer is None:
        problems.append('--tokenizer: name a tokenizer.json, or set "tokenizer" in the host settings')
    if recipe is None:
        problems.append("--recipe: name a recipe.json (`nstrain sample` writes one)")
    if problems or chosen_tokenizer is None or recipe is None:
        raise Refused(problems)
    report = init_data_line(
        resolve(work),
        recipe=resolve(recipe),
        tokenizer=resolve(chosen_tokenizer),
        eos_id=eos_id,
        cycle_tokens=tokens,
        seed=seed,
        calibration_from=resolve(calibration) if calibration is not None else None,
        progress=(lambda message: None) if json else _say,
    )
    if json:
        _print_json(report.to_json())
    else:
        _say(str(report))
        _say(f"next: nstrain data val --work {_quoted(resolve(work))}")
    return 0


@app.command
def val(*, work: Path, json: Flag = False) -> int:
    """Collect the held-out documents of every stratum as token streams; done once.

    Parameters
    ----------
    work
        Folder of the data line.
    json
        Print the record as JSON.
    """
    load_host()
    from trainer_core.data.validation import make_heldout

    line = resolve(work)
    record = make_heldout(line)
    if json:
        _print_json(record)
        return 0
    empty = []
    for name, strata in record["sources"].items():
        tokens = {stratum: entry["tokens"] for stratum, entry in strata.items()}
        _say(f"{name}: {sum(tokens.values()):,} held-out tokens ({_listed(tokens)})")
        empty += [] if any(tokens.values()) else [name]
    if empty:
        _say(
            f"no document of {', '.join(empty)} was held out, and a training line needs some: raise "
            '"heldout" in the recipe, or split the text into more documents, and make another data line'
        )
    else:
        _say(f"next: nstrain new RUN --model llama-cpu --data {_quoted(line)} --peak-lr 3e-3")
    return 0


@app.command
def plan(*, work: Path, cycles: int, dry_run: Flag = False, json: Flag = False) -> int:
    """Predict, from the calibration, how long every stratum lasts and whether the cycles asked for fit.

    Parameters
    ----------
    work
        Folder of the data line.
    cycles
        Number of cycles, counted from cycle 0.
    dry_run
        Required: a cycle is planned for good only when it is prepared.
    json
        Print the prediction as JSON.
    """
    load_host()
    if not dry_run:
        raise Refused("data plan: give --dry-run; a cycle is planned for good by `nstrain data prepare`")
    from trainer_core.data.predict import predict
    from trainer_core.data.sources import load_data_line

    prediction = predict(load_data_line(resolve(work)), cycles)
    if json:
        _print_json(prediction.to_json())
    else:
        _say(str(prediction))
    prediction.require_enough()
    return 0


@app.command
def prepare(*, work: Path, cycle: int, json: Flag = False) -> int:
    """Download, tokenize and publish one cycle; a published one is left as it is.

    Parameters
    ----------
    work
        Folder of the data line.
    cycle
        Number of the cycle, from 0.
    json
        Print the summary as JSON.
    """
    load_host()
    from trainer_core.data.prepare import CyclePreparer

    preparer = CyclePreparer(resolve(work))
    preparer.download(cycle)
    summary = preparer.tokenize(cycle)
    if json:
        _print_json(summary)
    else:
        _say(f"cycle {cycle} is published ({_listed(summary)})")
    return 0


@app.command
def delete(*, work: Path, cycle: int, json: Flag = False) -> int:
    """Remove the shards of one cycle; its manifest stays, and it can be rebuilt from it.

    Parameters
    ----------
    work
        Folder of the data line.
    cycle
        Number of the cycle, from 0.
    json
        Print the outcome as JSON.
    """
    load_host()
    from trainer_core.data.prepare import CyclePreparer

    deleted = CyclePreparer(resolve(work)).delete_cycle(cycle, consumed=False)
    if json:
        _print_json({"cycle": cycle, "deleted": deleted})
    else:
        _say(f"cycle {cycle}: {'shards removed' if deleted else 'there were no shards'}")
    return 0


def _quoted(path: Path) -> str:
    """A path as one word of a shell command."""
    return shlex.quote(str(path))


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:,}" if isinstance(value, int) else f"{key} {value}" for key, value in values.items()
    )
