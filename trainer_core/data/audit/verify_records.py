"""Records of a data line compared with each other: measurements, recipe, held-out text and what was pinned.

What only describes (the counts of a measured file that no estimate uses) cannot be compared with anything.
Raises Refused with every difference of one record.
"""

from __future__ import annotations

from trainer_core.data.heldout.streams import HeldoutRecord, open_stream, record_path
from trainer_core.data.making.append import edits
from trainer_core.data.making.calibration import SourceCalibration, files_digest, load_calibration
from trainer_core.data.plan.state_file import planned_cycles
from trainer_core.data.recipe.schema import read_recipe
from trainer_core.data.sources import DataLine, SourceSpec
from trainer_core.errors import Refused
from trainer_core.line.paths import DataPaths


def check_calibration(paths: DataPaths, line: DataLine) -> None:
    """Every source was measured under what is pinned, and its estimates are those of data.json.

    Sources that the line does not have are passed over: an append that did not end left them.
    """
    measured = load_calibration(paths.root)
    problems: list[str] = []
    for spec in line.sources:
        if spec.name in measured:
            problems += [f"source {spec.name}: {problem}" for problem in _measured(spec, measured[spec.name])]
        else:
            problems.append(f"has no measurements of {spec.name}")
    if problems:
        raise Refused([f"{paths.calibration}: {problem}; restore it from a backup" for problem in problems])


def check_recipe(paths: DataPaths, line: DataLine) -> None:
    """The recipe on record is the line's, or a grown one; its folders may have moved."""
    recipe = read_recipe(paths.recipe)
    folders = {spec.name: spec.folder for spec in line.sources}
    same_places = {
        name: source.model_copy(update={"folder": folders[name]} if name in folders else {})
        for name, source in recipe.sources.items()
    }
    recipe = recipe.model_copy(update={"seed": line.seed, "sources": same_places})
    problems = edits(line, recipe, planned_cycles(paths))
    if problems:
        raise Refused([f"{paths.recipe}: {problem}" for problem in problems])


def check_stream(paths: DataPaths, record: HeldoutRecord, source: str, stratum: str) -> None:
    """A held-out stream has its hash, and the documents and tokens that are recorded."""
    shard, entry = open_stream(paths, record, source, stratum), record.sources[source][stratum]
    found, recorded = (len(shard.doc_ends), len(shard.tokens)), (entry.documents, entry.tokens)
    if found != recorded:
        raise Refused(
            f"{record_path(paths)}: source {source}, stratum {stratum}: {recorded[0]:,} documents and "
            f"{recorded[1]:,} tokens are recorded, its stream has {found[0]:,} and {found[1]:,}; restore it "
            "from a backup"
        )


def _measured(spec: SourceSpec, found: SourceCalibration) -> list[str]:
    pairs = [
        ("identity", found.identity, spec.identity),
        ("encode_sha256", found.encode_sha256, spec.encode_sha256),
        ("text", found.text, spec.text),
        ("heldout", found.heldout, spec.heldout),
        ("strata", sorted(found.strata), sorted(stratum.name for stratum in spec.strata)),
    ]
    for stratum in spec.strata:
        if (entry := found.strata.get(stratum.name)) is None:
            continue
        files = {file.path: (file.digest, file.size) for file in spec.stratum_files(stratum.name)}
        estimate = max(1, entry.estimate(sum(size for _, size in files.values())))
        pairs += [
            (f"{stratum.name}.file", (entry.file_digest, entry.file_bytes), files.get(entry.file)),
            (
                f"{stratum.name}.files_sha256",
                entry.files_sha256,
                files_digest(spec.stratum_files(stratum.name)),
            ),
            (f"{stratum.name}: its estimate of tokens", estimate, stratum.tokens),
        ]
    return [f"{key} is {ours!r}, data.json has {theirs!r}" for key, ours, theirs in pairs if ours != theirs]
