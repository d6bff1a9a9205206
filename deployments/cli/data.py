"""The verbs that make and grow a data line (`nstrain data init|val|append|plan`), and `nstrain sample`.

Each is one call of trainer_core and what a person sees of it; host settings are read first. The other verbs
of `nstrain data` are in data_cycles.py and data_checks.py.
"""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from deployments.cli.printing import Flag, listed, print_json, progress, quoted, say
from trainer_core.errors import Refused
from trainer_core.host import load_host, resolve

app = App(name="data", help="Make a data line and its cycles.")

_ELSEWHERE = {
    "prepare": ("data_cycles:prepare", "Download, tokenize and publish one cycle."),
    "run-preparer": (
        "data_cycles:run_preparer",
        "Prepare cycles ahead of the training line, without Prefect.",
    ),
    "verify": ("data_checks:verify", "Compare everything on disk with the records."),
    "rebuild": ("data_cycles:rebuild", "Write a cycle's shards again from its manifest."),
    "delete": ("data_cycles:delete", "Remove the shards of one cycle."),
    "report": ("data_checks:report", "What cycles really held, against the recipe."),
}


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
    facts = build_sample(target, max_mb=max_mb, progress=progress(quiet=json))
    if json:
        print_json({"out": str(target), **facts})
        return 0
    say(f"{facts['documents']:,} documents, {facts['bytes'] / 1e6:.1f} MB of text in {target}")
    files = f"--recipe {quoted(target / facts['recipe'])} --tokenizer {quoted(target / facts['tokenizer'])}"
    say(f"next: nstrain data init --work DATA {files} --eos-id {facts['eos_id']} --cycle-tokens 65536")
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
        recipe.json with sources and shares; examples/minicpm-2b/recipe.json when left out.
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
    from trainer_core.data.making.initialize import init_data_line
    from trainer_core.data.recipe.schema import DEFAULT_RECIPE
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
    if problems or chosen_tokenizer is None:
        raise Refused(problems)
    report = init_data_line(
        resolve(work),
        recipe=resolve(recipe) if recipe is not None else DEFAULT_RECIPE,
        tokenizer=resolve(chosen_tokenizer),
        eos_id=eos_id,
        cycle_tokens=tokens,
        seed=seed,
        calibration_from=resolve(calibration) if calibration is not None else None,
        progress=progress(quiet=json),
    )
    if json:
        print_json(report.to_json())
    else:
        say(str(report))
        say(f"next: nstrain data val --work {quoted(resolve(work))}")
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
    from trainer_core.data.heldout.validation import make_heldout

    line = resolve(work)
    record = make_heldout(line, progress=progress(quiet=json))
    if json:
        print_json(record)
        return 0
    empty = []
    for name, strata in record["sources"].items():
        tokens = {stratum: entry["tokens"] for stratum, entry in strata.items()}
        say(f"{name}: {sum(tokens.values()):,} held-out tokens ({listed(tokens)})")
        empty += [] if any(tokens.values()) else [name]
    if empty:
        say(
            f"no document of {', '.join(empty)} was held out, and a training line needs some: raise "
            '"heldout" in the recipe, or split the text into more documents, and make another data line'
        )
    else:
        say(f"next: nstrain new RUN --model nano-cpu --data {quoted(line)} --peak-lr 3e-3")
    return 0


@app.command
def append(*, work: Path, recipe: Path, json: Flag = False) -> int:
    """Grow a data line by the later pieces and new sources of its recipe; what is past never changes.

    Parameters
    ----------
    work
        Folder of the data line.
    recipe
        The whole recipe, grown at its end.
    json
        Print what was added as JSON.
    """
    load_host()
    from trainer_core.data.making.append import append_recipe

    done = append_recipe(resolve(work), resolve(recipe), progress=progress(quiet=json))
    if json:
        print_json(done.to_json())
    else:
        say(str(done))
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
    from trainer_core.data.plan.predict import predict_work

    prediction = predict_work(resolve(work), cycles)
    if json:
        print_json(prediction.to_json())
    else:
        say(str(prediction))
    prediction.require_enough()
    return 0


for _name, (_target, _help) in _ELSEWHERE.items():
    app.command(f"deployments.cli.{_target}", name=_name, help=_help)
