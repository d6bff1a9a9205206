"""One source of a recipe, pinned: its files, its text rule, its encoder, its strata with their sizes.

Every stratum of a pinned source has text to train on, in whichever position the source stands. Measurements
of other data lines are taken over where files, tokenizer copy, text rule, identity and held-out fraction are
the same; fresh ones are handed on as they come, so that an interrupted `data init` goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from trainer_core.data.files.listing import suffix_of
from trainer_core.data.making.calibrate import Conditions, calibrate_stratum
from trainer_core.data.making.calibration import SourceCalibration, StratumCalibration
from trainer_core.data.making.places import Listed, Place, Surroundings, place_of
from trainer_core.data.recipe.schema import SourceRecipe
from trainer_core.data.sources import SourceFile, SourceSpec, Stratum, TextRule
from trainer_core.data.text.read import check_file
from trainer_core.data.tokens.encode import Encoder
from trainer_core.errors import Refused

Strata = dict[str, list[SourceFile]]


@dataclass(frozen=True, kw_only=True)
class PinnedSource:
    """A source, pinned and measured."""

    spec: SourceSpec
    """Its part of data.json."""
    calibration: SourceCalibration
    """Its part of calibration.json."""
    taken_over: tuple[str, ...]
    """Strata whose numbers another data line measured."""


@dataclass(kw_only=True)
class Pinning:
    """What pinning the sources of one recipe shares."""

    tokenizer_json: bytes
    """The tokenizer file."""
    added: Collection[str]
    """Its added tokens."""
    eos_id: int
    """End-of-document id."""
    seed: int
    """Seed of the line."""
    known: Sequence[SourceCalibration]
    """Earlier measurements, the preferred ones first."""
    around: Surroundings
    """What reaching a hub needs."""
    progress: Callable[[str], None]
    """Receives what is found and done."""
    measured: Callable[[str, SourceCalibration], None]
    """Receives a source's measurements whenever a stratum is added."""
    _encoders: dict[tuple[str, ...], Encoder] = field(default_factory=dict)

    def encoder(self, markers: tuple[str, ...]) -> Encoder:
        """The encoder of sources with these markers."""
        if markers not in self._encoders:
            self._encoders[markers] = Encoder(self.tokenizer_json, markers=markers, eos_id=self.eos_id)
        return self._encoders[markers]

    def pin(self, name: str, source: SourceRecipe) -> PinnedSource:
        """Pin one source. Raises Refused with every problem found in it."""
        encoder = self.encoder(tuple(source.markers))
        self._check_rule(source)
        place = place_of(name, source, self.around)
        listed = place.pin()
        strata: Strata = {}
        for file in listed.files:
            strata.setdefault(file.stratum, []).append(file)
        self.progress(f"{name}: {len(listed.files)} files, {len(strata)} strata ({place.label})")
        asked = SourceCalibration(
            identity=source.identity,
            encode_sha256=encoder.digest,
            text=source.text,
            heldout=source.heldout,
            strata={},
        )
        known = self._known(asked, strata)
        calibration = self._measure(name, place, strata, asked, known, encoder)
        if source.repo is None:
            _check_files(place, listed.files, calibration.text)
        if source.text.kind == "auto":
            self.progress(_confirm(name, calibration.text))
        spec = _spec(name, source, listed, calibration, strata)
        return PinnedSource(spec=spec, calibration=calibration, taken_over=tuple(sorted(known)))

    def _check_rule(self, source: SourceRecipe) -> None:
        """A part of a template that is an added token of the tokenizer is meant to be it."""
        parts = (*source.text.template, source.text.join)
        undeclared = sorted({part for part in parts if part in self.added and part not in source.markers})
        if undeclared:
            raise Refused(
                f"text: {', '.join(map(repr, undeclared))} is an added token of the tokenizer and would be "
                'written as plain characters; name it in "markers"'
            )

    def _known(
        self, asked: SourceCalibration, strata: Strata
    ) -> dict[str, tuple[TextRule, StratumCalibration]]:
        """Measurements that hold here, by stratum."""
        found: dict[str, tuple[TextRule, StratumCalibration]] = {}
        for earlier in self.known:
            if earlier.fits(asked):
                for stratum, files in strata.items():
                    entry = earlier.known(stratum, files)
                    if entry is not None and (earlier.text.kind != "whole" or not _with_columns(files)):
                        found.setdefault(stratum, (earlier.text, entry))
        return found

    def _measure(
        self,
        name: str,
        place: Place,
        strata: Strata,
        asked: SourceCalibration,
        known: dict[str, tuple[TextRule, StratumCalibration]],
        encoder: Encoder,
    ) -> SourceCalibration:
        """Measurements of all strata. Raises Refused naming every stratum without text."""
        under = Conditions(encoder=encoder, identity=asked.identity, heldout=asked.heldout, seed=self.seed)
        problems: list[str] = []
        rules: dict[TextRule, str] = {}
        entries: dict[str, StratumCalibration] = {}
        if known:
            self.progress(f"{name}: {len(known)} of {len(strata)} strata were measured before")
        for stratum, files in sorted(strata.items()):
            try:
                found = known.get(stratum) or calibrate_stratum(files, place.reading, asked.text, under)
            except Refused as error:
                problems += error.problems
                continue
            if found is None:
                problems.append(_no_text(place, stratum, files, len(strata)))
                continue
            rules.setdefault(found[0], found[1].file)
            entries[stratum] = found[1]
            if stratum not in known:
                rate = found[1].sampled_tokens / max(1, found[1].sampled_bytes)
                self.progress(f"{name}/{stratum}: {rate:.3f} tokens per byte of text in {found[1].file}")
            columns = [rule for rule in rules if rule.kind != "whole"]
            if len(columns) <= 1:  # else the source is refused, and its measurements fit no one rule
                rule = columns[0] if columns else found[0]
                self.measured(
                    name, SourceCalibration(**{**vars(asked), "text": rule, "strata": dict(entries)})
                )
        if problems:
            raise Refused(problems)
        rule = _one_rule(place, rules)
        if rule.kind == "whole" and (
            files := _with_columns([file for group in strata.values() for file in group])
        ):
            raise Refused(_no_column(place, files))
        return SourceCalibration(**{**vars(asked), "text": rule, "strata": entries})


def _one_rule(place: Place, rules: dict[TextRule, str]) -> TextRule:
    """The rule that all strata agree on; .txt files go with any."""
    columns = {rule: path for rule, path in rules.items() if rule.kind != "whole"}
    if len(columns) > 1:
        raise Refused(
            f"{place.label}: the text column differs between files: "
            + ", ".join(f"{rule.column!r} in {path}" for rule, path in columns.items())
            + '; make one source per column, or name it: "text": {"column": "<name>"}'
        )
    return next(iter(columns or rules))


def _with_columns(files: Sequence[SourceFile]) -> list[SourceFile]:
    """The files that are read by a column."""
    return [file for file in files if suffix_of(file.path) != ".txt"]


def _no_column(place: Place, files: Sequence[SourceFile]) -> str:
    shown = ", ".join(file.path for file in files[:5])
    return (
        f"{place.label}: {len(files)} files with columns have no text in their first rows ({shown}), the "
        'others are plain text; name the column, "text": {"column": "<name>"}, remove these files or narrow '
        'the "glob"'
    )


def _no_text(place: Place, stratum: str, files: Sequence[SourceFile], strata: int) -> str:
    shown = ", ".join(file.path for file in files[:5])
    where = f"stratum {stratum!r}: its" if strata > 1 else f"{place.label}: its"
    return (
        f"{where} {len(files)} files hold no documents to train on ({shown}); "
        'remove them or narrow the "glob"'
    )


def _confirm(name: str, rule: TextRule) -> str:
    if rule.kind != "column":
        return f"{name}: its files are plain text, one document each"
    return (
        f"{name}: the text is found in column {rule.column!r}; please confirm, or name another one: "
        f'"text": {{"column": "{rule.column}"}}'
    )


def _spec(
    name: str, source: SourceRecipe, listed: Listed, calibration: SourceCalibration, strata: Strata
) -> SourceSpec:
    return SourceSpec(
        name=name,
        identity=calibration.identity,
        folder=source.folder,
        repo=source.repo,
        revision=None if source.repo is None else source.revision or "main",
        commit=listed.commit,
        glob=source.glob,
        stratum_rule=source.stratum,
        text=calibration.text,
        markers=tuple(source.markers),
        heldout=source.heldout,
        encode_sha256=calibration.encode_sha256,
        files=listed.files,
        ignored=listed.ignored,
        strata=tuple(
            Stratum(name=stratum, tokens=max(1, entry.estimate(sum(file.size for file in strata[stratum]))))
            for stratum, entry in sorted(calibration.strata.items())
        ),
    )


def _check_files(place: Place, files: Sequence[SourceFile], rule: TextRule) -> None:
    """What the files of a folder already show to be unreadable; a download is checked when it is read."""
    problems: list[str] = []
    for file in files:
        try:
            with place.reading(file) as path:
                check_file(path, rule)
        except Refused as error:
            problems += error.problems
    if problems:
        raise Refused(problems)
