"""`nstrain check`: every start check of a line that needs no GPU, all problems at once.

`check_line` is what every start repeats and loads no torch. `check_shapes` traces the model (seconds, most of
them the import of torch), so only `nstrain check` asks for it; a start on a GPU finds the same by capturing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from trainer_core.data.plan.consumer import check_consumer, growth_problems, read_consumer
from trainer_core.errors import Refused
from trainer_core.line.checkpoints import newest, read_state
from trainer_core.line.config import RunConfig, load_run
from trainer_core.line.cxx import compiler_problems
from trainer_core.line.files import read_json
from trainer_core.line.kept import check_kept
from trainer_core.line.paths import DataPaths, LinePaths
from trainer_core.line.run_checks import not_recomputable, too_long
from trainer_core.models.families import FAMILIES
from trainer_core.models.preset import longest_row


def check_all(line: Path) -> list[str]:
    """The sentences of `check_line` and `check_shapes`. Raises Refused with every problem of both."""
    load_run(LinePaths(line))  # what is wrong there is said once, and nothing else can be asked
    found: list[str] = []
    problems: list[str] = []
    for check in (check_line, check_shapes):
        try:
            found += check(line)
        except Refused as refused:
            problems += refused.problems
    if problems:
        raise Refused(problems)
    return found


def check_shapes(line: Path) -> list[str]:
    """A sentence for each shape of run.json: that it can be captured, and its peak memory by estimate.

    Raises Refused with everything that keeps one from being captured. Takes neither a GPU nor memory.
    """
    from trainer_core.measure.candidates import size_text
    from trainer_core.measure.shapes import capture_problems, line_shapes, trace
    from trainer_core.measure.tune_record import read_record, tune_command

    paths = LinePaths(line)
    config = load_run(paths)
    if unreadable_shapes(config):
        return []  # `check_line` says so
    if problems := model_problems(config):
        raise Refused([f"{paths.run_json}: {problem}" for problem in problems])
    if problems := _losses_that_are_none(config):
        raise Refused([f"{paths.run_json}: {problem}" for problem in problems])
    traced = [trace(config, shape) for shape in line_shapes(config)]
    if problems := capture_problems(traced):
        raise Refused([f"{paths.run_json}: lengths: {problem}" for problem in problems])
    record = read_record(paths)
    return [
        *(
            f"{shape.shape}: can be captured, about {size_text(shape.peak_bytes)} at the peak "
            f"({size_text(shape.state_bytes)} of it for the training state)"
            for shape in traced
        ),
        f"shapes were measured on {record.device.name}"
        if record
        else f"shapes were not measured: a start on a GPU needs {tune_command(paths)} there first",
    ]


def check_line(line: Path) -> list[str]:
    """Returns what was found to be right, a sentence each. Raises Refused with every problem."""
    paths = LinePaths(line)
    config = load_run(paths)
    data = DataPaths(Path(config.data))
    if not data.data.exists():
        raise Refused(f"{paths.run_json}: data: {data.root} is not a data line (no data.json)")
    problems = [
        *compiler_problems(paths, config),
        *_data_problems(paths, data, config),
        *_resume_problems(paths, config),
    ]
    if problems:
        raise Refused(problems)
    point = newest(paths)
    free = shutil.disk_usage(line).free
    over = point is not None and config.end_tokens is not None and point.tokens >= config.end_tokens
    return [
        f"{paths.run_json}: valid, {config.model.name}, {updates_text(config)}",
        f"{data.root}: consumer and vocabulary fit{_growth(data, config)}",
        f"resumes from {point.path.name} at {point.tokens:,} tokens" if point else "starts at update 0",
        f"{free / 1e9:.1f} GB free",
        *(["finished: a start changes nothing; append to the schedule in run.json to go on"] if over else []),
    ]


def updates_text(config: RunConfig) -> str:
    """The sizes of a line's updates and rows, for people."""
    said = []
    values = None
    for span in config.spans():
        if values == (span.tokens, span.row_length):
            continue  # another piece of the schedule with the same updates
        values = (span.tokens, span.row_length)
        since = f" from {span.start:,} on" if span.start else ""
        said.append(f"{span.tokens:,} tokens per update in rows of {span.row_length:,}{since}")
    return ", ".join(said)


def _growth(data: DataPaths, config: RunConfig) -> str:
    """Whether run.json goes beyond what the data line was told."""
    consumer = read_consumer(data.root)
    told = {
        "row_lengths": [{"from": p.start, "to": p.end, "length": p.value} for p in consumer.row_lengths],
        "batch": [{"from": p.start, "to": p.end, "tokens": p.value} for p in consumer.batches],
    }
    return "" if told == config.consumer_schedules() else "; the next start tells it what run.json grew by"


def unreadable_shapes(config: RunConfig) -> list[str]:
    """Shapes that the model cannot take, as far as that shows without torch."""
    family = FAMILIES.get(config.model.family)
    return [
        *too_long(config, longest_row(config.model.config)),
        *(not_recomputable(config, family.recomputation) if family else []),
    ]


def model_problems(config: RunConfig) -> list[str]:
    """What keeps the model of run.json from being made: it is built without memory, by torch.

    Of another package's model also which shapes it cannot take; of ours `unreadable_shapes` says it.
    """
    import torch

    from trainer_core.models.registry import build

    model = config.model
    try:
        with torch.device("meta"):
            built = build(model.family, model.config, model.vocab_size, config.seed)
    except Refused as refused:
        return list(refused.problems)
    return [] if model.family in FAMILIES else not_recomputable(config, built.recomputation)


def least_vocabulary(data: DataPaths) -> int:
    """Entries that a model of the data line needs: the largest token id of its tokenizer plus one."""
    return int(read_json(data.data)["tokenizer"]["largest_id"]) + 1


def vocabulary_problems(data: DataPaths, config: RunConfig) -> list[str]:
    """Whether the model has an entry for every token of the data line."""
    least, entries = least_vocabulary(data), config.model.vocab_size
    if entries >= least:
        return []
    return [
        f"model.vocab_size: {entries} entries cannot hold the data line's largest token id {least - 1}; "
        f"expected at least {least}"
    ]


def _losses_that_are_none(config: RunConfig) -> list[str]:
    """What is wrong with the loss of another package's model: on a CPU it would train all the same."""
    from trainer_core.models.registry import loss_problems

    model, shape = config.model, config.lengths[0]
    return loss_problems(model.family, model.config, model.vocab_size, shape.rows, shape.length)


def fit_problems(data: DataPaths, config: RunConfig) -> list[str]:
    """What would keep the data line's cycles from feeding the line, and its model from reading their rows."""
    found = unreadable_shapes(config)
    for span in config.spans():
        found += check_consumer(data.root, row_length=span.row_length, tokens_per_update=span.tokens)
    return list(dict.fromkeys(found))


def _data_problems(paths: LinePaths, data: DataPaths, config: RunConfig) -> list[str]:
    """Whether this data line feeds this training line."""
    problems = [f"{paths.run_json}: {problem}" for problem in vocabulary_problems(data, config)]
    try:
        consumer = read_consumer(data.root)
    except Refused as refused:
        return [*problems, *refused.problems]
    if Path(consumer.line).resolve() != paths.root.resolve():
        problems.append(
            f"{data.consumer}: this data line is consumed by {consumer.line}, not by {paths.root}. If that "
            f"line was moved here for good, put its new path into {data.consumer.name} (key `line`)"
        )
    problems += fit_problems(data, config)
    problems += [
        f"{paths.run_json}: {problem}"
        for problem in growth_problems(data.root, line=consumer.line, **config.consumer_schedules())
    ]
    return problems


def _resume_problems(paths: LinePaths, config: RunConfig) -> list[str]:
    """Whether the kept settings are those of the newest checkpoint."""
    point = newest(paths)
    if point is None:
        return []
    try:
        check_kept(read_state(point.path)["run"], config, paths.run_json, tokens=point.tokens)
    except Refused as refused:
        return list(refused.problems)
    return []
