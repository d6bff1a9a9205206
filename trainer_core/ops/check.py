"""`nstrain check`: every start check of a line that needs no GPU and no torch, all problems at once."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainer_core.data.consumer import check_consumer, read_consumer
from trainer_core.errors import Refused
from trainer_core.line.checkpoints import newest, read_state
from trainer_core.line.config import RunConfig, check_kept, load_run
from trainer_core.line.files import read_json
from trainer_core.line.paths import DataPaths, LinePaths


def check_line(line: Path) -> list[str]:
    """Returns what was found to be right, a sentence each. Raises Refused with every problem."""
    paths = LinePaths(line)
    config = load_run(paths)
    data = DataPaths(Path(config.data))
    if not data.data.exists():
        raise Refused(f"{paths.run_json}: data: {data.root} is not a data line (no data.json)")
    problems = [*_data_problems(paths, data, config), *_resume_problems(paths, config)]
    if problems:
        raise Refused(problems)
    point = newest(paths)
    free = shutil.disk_usage(line).free
    return [
        f"{paths.run_json}: valid, {config.model.name}, {config.tokens_per_update} tokens per update",
        f"{data.root}: consumer and vocabulary fit",
        f"resumes from {point.path.name} at {point.tokens} tokens" if point else "starts at update 0",
        f"{free / 1e9:.1f} GB free",
    ]


def _data_problems(paths: LinePaths, data: DataPaths, config: RunConfig) -> list[str]:
    """Whether this data line feeds this training line."""
    problems = []
    largest = int(read_json(data.data)["tokenizer"]["largest_id"])
    if largest >= config.model.vocab_size:
        problems.append(
            f"{paths.run_json}: model.vocab_size: {config.model.vocab_size} entries cannot hold the data "
            f"line's largest token id {largest}"
        )
    try:
        consumer = read_consumer(data.root)
    except Refused as refused:
        return [*problems, *refused.problems]
    if Path(consumer.line).resolve() != paths.root.resolve():
        problems.append(
            f"{data.consumer}: this data line is consumed by {consumer.line}, not by {paths.root}. If that "
            f"line was moved here for good, put its new path into {data.consumer.name} (key `line`)"
        )
    problems += check_consumer(
        data.root, row_length=config.lengths[0].length, tokens_per_update=config.tokens_per_update
    )
    for shape in config.lengths:
        if consumer.row_length(0) != shape.length:
            problems.append(
                f"{paths.run_json}: lengths: {shape.length}; the data line was registered with rows of "
                f"{consumer.row_length(0)} tokens"
            )
    if consumer.batch(0) != config.tokens_per_update:
        problems.append(
            f"{paths.run_json}: tokens_per_update: {config.tokens_per_update}; the data line was registered "
            f"with {consumer.batch(0)}"
        )
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
