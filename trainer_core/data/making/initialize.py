"""`data init`: pin everything a data line will ever read, once, and write it down.

Resolves the recipe into data.json: commits and file lists with hashes, text rules, the tokenizer, exact
shares, strata with their calibrated sizes. Never plans a cycle and never fixes a row length. data.json is
written last: a folder without it is no data line, and an interrupted init is simply run again; what it had
measured by then lies in calibration.part.json and is used.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from trainer_core.data.hub.waiting import Patience
from trainer_core.data.making.calibration import (
    SourceCalibration,
    calibration_to_json,
    load_calibration,
    read_calibration,
)
from trainer_core.data.making.init_report import InitReport
from trainer_core.data.making.overlap import overlaps
from trainer_core.data.making.pin import PinnedSource, Pinning
from trainer_core.data.making.places import Surroundings
from trainer_core.data.recipe.schema import SEED_LIMIT, Recipe, SourceRecipe, dump_recipe, load_recipe
from trainer_core.data.sources import (
    MAX_SEGMENTS,
    PLANNER_VERSION,
    SEGMENT_TOKENS,
    DataLine,
    SourceSpec,
    TokenizerRecord,
)
from trainer_core.data.tokens.encode import Encoder, TokenizerFacts, tokenizer_facts
from trainer_core.errors import Refused
from trainer_core.host import load_host
from trainer_core.line.files import write_json
from trainer_core.line.paths import DataPaths

UNFINISHED = "calibration.part.json"
LARGEST_CYCLE = 10**12
"""Tokens of a cycle: its rows are ordered in memory."""


def num_segments(cycle_tokens: int) -> int:
    """Slices of a cycle: large enough to hold every stratum, few enough to keep their records for ever."""
    return min(MAX_SEGMENTS, max(1, cycle_tokens // SEGMENT_TOKENS))


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
    patience: Patience = Patience(),  # noqa: B008 (frozen)
) -> InitReport:
    """Make the data line `work`. Raises Refused with every problem of recipe, sources and tokenizer."""
    paths = DataPaths(work)
    if paths.data.exists():
        raise Refused(f"{paths.data}: this data line exists already; choose another --work")
    chosen, facts, known = _inputs(recipe, tokenizer, eos_id, cycle_tokens, seed, calibration_from)
    seed = chosen.seed if seed is None else seed
    work.mkdir(parents=True, exist_ok=True)
    pinning = start_pinning(
        paths,
        tokenizer.read_bytes(),
        facts.added,
        eos_id=eos_id,
        seed=seed,
        known=known,
        progress=progress,
        patience=patience,
    )
    pinned = pin_sources(pinning, chosen.sources)
    line = DataLine(
        cycle_tokens=cycle_tokens,
        seed=seed,
        segments=num_segments(cycle_tokens),
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
        sources=tuple(source.spec for source in pinned),
        pieces=chosen.integer_pieces(),
    )
    calibration = {source.spec.name: source.calibration for source in pinned}
    report = InitReport(
        work=str(work),
        line=line,
        eos=pinning.encoder(()).eos,
        calibration=calibration,
        taken_over={source.spec.name: source.taken_over for source in pinned},
        workers=load_host().limits.tokenize,
    )
    if problems := report.too_short():
        raise Refused(problems)
    if recipe.resolve() != paths.recipe.resolve():
        write_json(paths.recipe, dump_recipe(chosen.model_copy(update={"seed": seed})))
    write_json(paths.calibration, calibration_to_json(calibration))
    write_json(paths.data, line.to_json())
    clear_unfinished(paths, paths.incoming)
    return report


def start_pinning(
    paths: DataPaths,
    tokenizer_json: bytes,
    added: Collection[str],
    *,
    eos_id: int,
    seed: int,
    known: Sequence[SourceCalibration],
    progress: Callable[[str], None],
    patience: Patience,
) -> Pinning:
    """What pins sources for a data line; what an interrupted run has measured is used again."""
    unfinished = paths.root / UNFINISHED
    earlier = read_calibration(unfinished) if unfinished.exists() else {}
    notes = dict(earlier)

    def note(name: str, measured: SourceCalibration) -> None:
        notes[name] = measured
        write_json(unfinished, calibration_to_json(notes))

    return Pinning(
        tokenizer_json=tokenizer_json,
        added=added,
        eos_id=eos_id,
        seed=seed,
        known=[*earlier.values(), *known],
        around=Surroundings(paths=paths, say=progress, patience=patience),
        progress=progress,
        measured=note,
    )


def clear_unfinished(paths: DataPaths, *downloads: Path) -> None:
    """Nothing is left of pinning but the records; `downloads` are the folders that it downloaded to."""
    (paths.root / UNFINISHED).unlink(missing_ok=True)
    for folder in downloads:
        shutil.rmtree(folder, ignore_errors=True)


def pin_sources(
    pinning: Pinning, sources: Mapping[str, SourceRecipe], *, known: Sequence[SourceSpec] = ()
) -> list[PinnedSource]:
    """Pin sources beside the known ones. Raises Refused with the problems of all, each under its name."""
    problems: list[str] = []
    pinned: list[PinnedSource] = []
    for name, source in sources.items():
        try:
            pinned.append(pinning.pin(name, source))
        except Refused as error:
            problems += [f"source {name!r}: {problem}" for problem in error.problems]
    problems += overlaps(known, [source.spec for source in pinned])
    if problems:
        raise Refused(problems)
    return pinned


def _inputs(
    recipe: Path,
    tokenizer: Path,
    eos_id: int,
    cycle_tokens: int,
    seed: int | None,
    calibration_from: Path | None,
) -> tuple[Recipe, TokenizerFacts, list[SourceCalibration]]:
    """Everything a person named, checked together so that all mistakes are reported at once."""
    problems: list[str] = []
    chosen, facts, known = None, None, list[SourceCalibration]()
    if seed is not None and not 0 <= seed < SEED_LIMIT:
        problems.append(f"seed {seed}: expected 0 .. 2^63 - 1")
    if not 1 <= cycle_tokens <= LARGEST_CYCLE:
        problems.append(f"cycle_tokens {cycle_tokens}: expected at least 1 and at most 10^12")
    try:
        chosen = load_recipe(recipe)
    except Refused as error:
        problems += error.problems
    try:
        facts = tokenizer_facts(tokenizer)
    except Refused as error:
        problems += error.problems
    try:
        if facts is not None:
            Encoder(tokenizer.read_bytes(), eos_id=eos_id)
    except Refused as error:
        problems += [f"{tokenizer}: {problem}" for problem in error.problems]
    try:
        if calibration_from is not None:
            known = list(load_calibration(calibration_from).values())
    except Refused as error:
        problems += error.problems
    if problems or chosen is None or facts is None:
        raise Refused(problems)
    return chosen, facts, known
