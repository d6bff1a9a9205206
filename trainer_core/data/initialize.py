"""`data init`: pin everything a data line will ever read, once, and write it down.

Resolves the recipe into data.json: file lists with hashes, text rules, the tokenizer, exact shares, strata
with their calibrated sizes. Never plans a cycle and never fixes a row length. data.json is written last: a
folder without it is no data line, and an interrupted init is simply run again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainer_core.data.calibration import SourceCalibration, calibration_to_json, load_calibration
from trainer_core.data.encode import Encoder, TokenizerFacts, tokenizer_facts
from trainer_core.data.init_report import InitReport
from trainer_core.data.pin import Pinning
from trainer_core.data.recipe import SEED_LIMIT, Recipe, dump_recipe, load_recipe
from trainer_core.data.sources import (
    PLANNER_VERSION,
    SEGMENT_TOKENS,
    DataLine,
    SourceSpec,
    TokenizerRecord,
)
from trainer_core.errors import Refused
from trainer_core.line.files import write_json
from trainer_core.line.paths import DataPaths


def init_data_line(
    work: Path,
    *,
    recipe: Path,
    tokenizer: Path,
    eos_id: int,
    cycle_tokens: int,
    seed: int | None = None,
    calibration_from: Path | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> InitReport:
    """Make the data line `work`. Raises Refused with every problem of recipe, folders and tokenizer."""
    paths = DataPaths(work)
    if paths.data.exists():
        raise Refused(f"{paths.data}: this data line exists already; choose another --work")
    chosen, facts, known = _inputs(recipe, tokenizer, eos_id, cycle_tokens, seed, calibration_from)
    seed = chosen.seed if seed is None else seed
    pinning = Pinning(
        tokenizer_json=tokenizer.read_bytes(), eos_id=eos_id, seed=seed, known=known, progress=progress
    )
    problems: list[str] = []
    specs: list[SourceSpec] = []
    calibration: dict[str, SourceCalibration] = {}
    for name, source in chosen.sources.items():
        try:
            spec, measured = pinning.pin(name, source)
            specs.append(spec)
            calibration[name] = measured
        except Refused as error:
            problems += [f"source {name!r}: {problem}" for problem in error.problems]
    if problems:
        raise Refused(problems)
    line = DataLine(
        cycle_tokens=cycle_tokens,
        seed=seed,
        segments=max(1, cycle_tokens // SEGMENT_TOKENS),
        planner_version=PLANNER_VERSION,
        eos_id=eos_id,
        token_dtype=facts.token_dtype,
        tokenizer=TokenizerRecord(
            path=str(tokenizer.resolve()),
            sha256=facts.sha256,
            library_version=facts.library_version,
            vocab_size=facts.vocab_size,
            largest_id=facts.largest_id,
        ),
        sources=tuple(specs),
        pieces=chosen.integer_pieces(),
    )
    work.mkdir(parents=True, exist_ok=True)
    if recipe.resolve() != paths.recipe.resolve():
        write_json(paths.recipe, dump_recipe(chosen))
    write_json(paths.calibration, calibration_to_json(calibration))
    write_json(paths.data, line.to_json())
    return InitReport(work=str(work), line=line, eos=pinning.encoder(()).eos, calibration=calibration)


def _inputs(
    recipe: Path,
    tokenizer: Path,
    eos_id: int,
    cycle_tokens: int,
    seed: int | None,
    calibration_from: Path | None,
) -> tuple[Recipe, TokenizerFacts, dict[str, SourceCalibration]]:
    """Everything a person named, checked together so that all mistakes are reported at once."""
    problems: list[str] = []
    chosen, facts, known = None, None, {}
    if seed is not None and not 0 <= seed < SEED_LIMIT:
        problems.append(f"seed {seed}: expected 0 .. 2^63 - 1")
    if cycle_tokens < 1:
        problems.append(f"cycle_tokens {cycle_tokens}: expected at least 1")
    try:
        chosen = load_recipe(recipe)
    except Refused as error:
        problems += error.problems
    try:
        facts = tokenizer_facts(tokenizer)
        Encoder(tokenizer.read_bytes(), eos_id=eos_id)
    except Refused as error:
        problems += [f"{tokenizer}: {problem}" for problem in error.problems]
    try:
        known = load_calibration(calibration_from) if calibration_from is not None else {}
    except Refused as error:
        problems += error.problems
    if problems or chosen is None or facts is None:
        raise Refused(problems)
    return chosen, facts, known
