"""One source of a recipe, pinned: its files, its text rule, its encoder, its strata with their sizes.

Never writes. Every stratum of a pinned source has text to train on, in whichever position the source stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainer_core.data.calibrate import calibrate_stratum, seeded_files
from trainer_core.data.calibration import SourceCalibration, StratumCalibration
from trainer_core.data.encode import Encoder
from trainer_core.data.folder import list_folder, pin_files
from trainer_core.data.recipe import SourceRecipe
from trainer_core.data.sources import SourceFile, SourceSpec, Stratum, TextRule
from trainer_core.data.text import check_file, resolve_rule
from trainer_core.errors import Refused


@dataclass(kw_only=True)
class Pinning:
    """What pinning the sources of one recipe shares."""

    tokenizer_json: bytes
    """The tokenizer file."""
    eos_id: int
    """End-of-document id."""
    seed: int
    """Seed of the line."""
    known: dict[str, SourceCalibration]
    """Measurements of another data line; used where everything they depend on is the same."""
    progress: Callable[[str], None]
    """Receives one line per source."""
    _encoders: dict[tuple[str, ...], Encoder] = field(default_factory=dict)

    def encoder(self, markers: tuple[str, ...]) -> Encoder:
        """The encoder of sources with these markers."""
        if markers not in self._encoders:
            self._encoders[markers] = Encoder(self.tokenizer_json, markers=markers, eos_id=self.eos_id)
        return self._encoders[markers]

    def pin(self, name: str, source: SourceRecipe) -> tuple[SourceSpec, SourceCalibration]:
        """Pin one source. Raises Refused with every problem found in it."""
        folder = Path(source.folder or "")
        encoder = self.encoder(tuple(source.markers))
        listing = list_folder(folder, source.glob)
        files = pin_files(folder, listing.files, source.stratum)
        strata: dict[str, list[SourceFile]] = {}
        for file in files:
            strata.setdefault(file.stratum, []).append(file)
        rule = self._resolve(folder, strata, source.text)
        measured = SourceCalibration(
            identity=source.id or folder.name,
            encode_sha256=encoder.digest,
            text=rule,
            heldout=source.heldout,
            strata={},
        )
        self.progress(f"{name}: {len(files)} files, {len(strata)} strata; measuring tokens per byte")
        measured.strata.update(self._calibrate(folder, strata, measured, encoder))
        spec = SourceSpec(
            name=name,
            identity=measured.identity,
            folder=source.folder,
            glob=source.glob,
            stratum_rule=source.stratum,
            text=rule,
            markers=tuple(source.markers),
            heldout=source.heldout,
            encode_sha256=encoder.digest,
            files=files,
            ignored=listing.ignored,
            strata=tuple(
                Stratum(name=stratum, tokens=max(1, entry.estimate(_bytes(strata[stratum]))))
                for stratum, entry in sorted(measured.strata.items())
            ),
        )
        return spec, measured

    def _resolve(self, folder: Path, strata: dict[str, list[SourceFile]], rule: TextRule) -> TextRule:
        """The text rule of a source: what the first file with text in every stratum says, if all agree."""
        said: dict[TextRule, str] = {}
        for stratum in sorted(strata):
            for file in seeded_files(strata[stratum], self.seed):
                resolved = resolve_rule(folder / file.path, rule)
                if resolved is not None:
                    said.setdefault(resolved, file.path)
                    break
        columns = {rule: path for rule, path in said.items() if rule.kind == "column"}
        if len(columns) > 1:
            raise Refused(
                f"{folder}: the text column differs between files: "
                + ", ".join(f"{rule.column!r} in {path}" for rule, path in columns.items())
                + '; make one source per column, or name it: "text": {"column": "<name>"}'
            )
        if not said:
            paths = [file.path for files in strata.values() for file in files]
            raise Refused(f"{folder}: its {len(paths)} files hold no documents ({', '.join(paths[:5])})")
        chosen = next(iter(columns or said))
        _check_files(folder, [file for files in strata.values() for file in files], chosen)
        return chosen

    def _calibrate(
        self,
        folder: Path,
        strata: dict[str, list[SourceFile]],
        source: SourceCalibration,
        encoder: Encoder,
    ) -> dict[str, StratumCalibration]:
        """Measurements by stratum. Raises Refused naming every stratum without text."""
        problems: list[str] = []
        measured: dict[str, StratumCalibration] = {}
        known = next((other for other in self.known.values() if other.fits(source)), None)
        for stratum, files in sorted(strata.items()):
            if known is not None and stratum in known.strata:
                measured[stratum] = known.strata[stratum]
                continue
            try:
                entry = calibrate_stratum(
                    folder,
                    files,
                    rule=source.text,
                    encoder=encoder,
                    identity=source.identity,
                    heldout=source.heldout,
                    seed=self.seed,
                )
            except Refused as error:
                problems += error.problems
                continue
            if entry is None:
                shown = ", ".join(file.path for file in files[:5])
                problems.append(
                    f"stratum {stratum!r}: its {len(files)} files hold no documents to train on ({shown}); "
                    'remove them or narrow the "glob"'
                )
            else:
                measured[stratum] = entry
        if problems:
            raise Refused(problems)
        return measured


def _bytes(files: list[SourceFile]) -> int:
    return sum(file.size for file in files)


def _check_files(folder: Path, files: list[SourceFile], rule: TextRule) -> None:
    problems: list[str] = []
    for file in files:
        try:
            check_file(folder / file.path, rule)
        except Refused as error:
            problems += error.problems
    if problems:
        raise Refused(problems)
