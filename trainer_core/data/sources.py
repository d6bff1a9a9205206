"""The records of `data.json`: what a data line is made of, resolved and pinned once by `data init`.

Owns the dataclasses and their JSON form. Never lists a folder, reads text or estimates anything.
Invariant: `DataLine.from_json(line.to_json()) == line`, and `digest()` does not depend on where the folders
and the tokenizer lie, so a line that was moved, or was made again elsewhere from the same files, is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trainer_core.data.plan.order import permutation
from trainer_core.data.records import read_record, refuse_other
from trainer_core.errors import Refused
from trainer_core.line.files import sha256_json, stamp
from trainer_core.line.paths import DataPaths

FORMAT = "data/1"
PLANNER_VERSION = 1
SEGMENT_TOKENS = 1 << 22
"""Tokens of a segment in small cycles."""
MAX_SEGMENTS = 64
"""Segments of large ones: each segment is a file per source and a record per stratum, kept for ever."""

StratumRule = Literal["none", "file"] | int


@dataclass(frozen=True, kw_only=True)
class TextRule:
    """Where the text of a source's files is. A .txt file is one document under every rule."""

    kind: Literal["auto", "column", "whole", "messages", "list"] = "auto"
    """`auto`: the only large string column; `column`: the named one; `whole`: there are only .txt files;
    `messages`: a column of chats; `list`: a column of texts that make one document."""
    column: str | None = None
    """Name of the column or JSON key, for kinds `column`, `messages` and `list`."""
    template: tuple[str, ...] = ()
    """For `messages`: what one message becomes. A part that is one of the source's markers is that token; in
    the others `{role}` and `{content}` are replaced, and nothing in them ever becomes a token of its own."""
    field: str | None = None
    """For `list`: the field of each element that holds its text; None when the elements are texts."""
    join: str = ""
    """For `list`: what stands between the texts; one of the source's markers becomes that token."""

    def to_json(self) -> Any:
        """The form it has in recipe.json and data.json."""
        match self.kind:
            case "column":
                return {"column": self.column}
            case "messages":
                return {"messages": self.column, "template": list(self.template)}
            case "list":
                return {"list": self.column, "field": self.field, "join": self.join}
        return self.kind

    @staticmethod
    def from_json(value: Any) -> TextRule:
        """Inverse of `to_json`."""
        if not isinstance(value, dict):
            return TextRule(kind=value)
        if "messages" in value:
            return TextRule(kind="messages", column=value["messages"], template=tuple(value["template"]))
        if "list" in value:
            return TextRule(kind="list", column=value["list"], field=value["field"], join=value["join"])
        return TextRule(kind="column", column=value["column"])


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One pinned file of a source."""

    path: str
    """Relative to the source's folder or repository, with forward slashes."""
    size: int
    """Bytes on disk."""
    digest: str
    """Hex digest of those bytes: sha256 (64 digits), or git's blob sha1 (40) where a hub knows no other."""
    stratum: str
    """Name of its stratum."""

    @property
    def algorithm(self) -> Literal["sha256", "git_sha1"]:
        """What `digest` is."""
        return "sha256" if len(self.digest) == 64 else "git_sha1"

    def pinned(self) -> dict[str, str]:
        """The digest under the key that manifests give it."""
        return {f"file_{self.algorithm}": self.digest}


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """A part of a source that keeps its share in every cycle."""

    name: str
    """Directory name, file path, or `all`."""
    tokens: int
    """Estimated tokens to train on (held-out text left out); the stratum's share is tokens / their sum."""


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """A source as pinned at `data init`."""

    name: str
    """Nickname in the recipe; used for metrics and file names only."""
    identity: str
    """Key of the held-out hash: repository and pattern, or the source's id; never its nickname."""
    folder: str | None = None
    """Absolute path of the folder; None for a hub source."""
    repo: str | None = None
    """Dataset repository on the hub, `owner/name`; None for a folder."""
    revision: str | None = None
    """Branch, tag or commit that the recipe named."""
    commit: str | None = None
    """Commit that it stood for at `data init`; nothing of another commit is ever read."""
    glob: str
    """Pattern that chose the files."""
    stratum_rule: StratumRule
    """`none`, `file`, or the directory level counted from 1."""
    text: TextRule
    """Resolved rule (never `auto`)."""
    markers: tuple[str, ...]
    """Added tokens that this source's text may use as control tokens."""
    heldout: float
    """Fraction of the documents kept for validation."""
    encode_sha256: str
    """Digest of the encode-only tokenizer copy."""
    files: tuple[SourceFile, ...]
    """Sorted by path."""
    ignored: tuple[str, ...]
    """Paths that the pattern matched but that no reader can read."""
    strata: tuple[Stratum, ...]
    """Sorted by name; every one has text."""

    def stratum_files(self, stratum: str) -> tuple[SourceFile, ...]:
        """The files of one stratum, sorted by path."""
        return self._by_stratum.get(stratum, ())

    def file_order(self, seed: int, stratum: str) -> tuple[str, ...]:
        """Paths of a stratum in the seeded order in which cycles open them."""
        key = (seed, stratum)
        if key not in self._orders:
            files = self.stratum_files(stratum)
            order = permutation(seed, "files", self.name, stratum, n=len(files))
            self._orders[key] = tuple(files[index].path for index in order.tolist())
        return self._orders[key]

    def estimated_tokens(self, path: str) -> int:
        """Tokens to expect of one file: its part of its stratum's estimate by bytes, at least 1."""
        return self._estimates[path]

    @cached_property
    def _by_stratum(self) -> dict[str, tuple[SourceFile, ...]]:
        found: dict[str, list[SourceFile]] = {}
        for file in self.files:
            found.setdefault(file.stratum, []).append(file)
        return {name: tuple(files) for name, files in found.items()}

    @cached_property
    def _orders(self) -> dict[tuple[int, str], tuple[str, ...]]:
        return {}

    @cached_property
    def _estimates(self) -> dict[str, int]:
        tokens = {stratum.name: stratum.tokens for stratum in self.strata}
        sizes = dict.fromkeys(tokens, 0)
        for file in self.files:
            sizes[file.stratum] += file.size
        return {
            file.path: max(1, tokens[file.stratum] * file.size // max(1, sizes[file.stratum]))
            for file in self.files
        }

    def to_json(self) -> dict[str, Any]:
        """JSON form; files are short lists to keep a corpus of 10,000 files readable."""
        place = (
            {"kind": "folder", "folder": self.folder}
            if self.repo is None
            else {"kind": "hub", "repo": self.repo, "revision": self.revision, "commit": self.commit}
        )
        return {
            **place,
            "identity": self.identity,
            "glob": self.glob,
            "stratum": {"level": self.stratum_rule}
            if isinstance(self.stratum_rule, int)
            else self.stratum_rule,
            "text": self.text.to_json(),
            "markers": list(self.markers),
            "heldout": self.heldout,
            "encode_sha256": self.encode_sha256,
            "strata": {stratum.name: stratum.tokens for stratum in self.strata},
            "files": [[file.path, file.size, file.digest, file.stratum] for file in self.files],
            "ignored": list(self.ignored),
        }

    @staticmethod
    def from_json(name: str, value: dict[str, Any]) -> SourceSpec:
        """Inverse of `to_json`."""
        rule = value["stratum"]
        return SourceSpec(
            name=name,
            identity=value["identity"],
            folder=value.get("folder"),
            repo=value.get("repo"),
            revision=value.get("revision"),
            commit=value.get("commit"),
            glob=value["glob"],
            stratum_rule=rule["level"] if isinstance(rule, dict) else rule,
            text=TextRule.from_json(value["text"]),
            markers=tuple(value["markers"]),
            heldout=value["heldout"],
            encode_sha256=value["encode_sha256"],
            files=tuple(
                SourceFile(path=path, size=size, digest=digest, stratum=stratum)
                for path, size, digest, stratum in value["files"]
            ),
            ignored=tuple(value["ignored"]),
            strata=tuple(Stratum(name=key, tokens=tokens) for key, tokens in value["strata"].items()),
        )


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Shares of the sources from one cycle on; exact integers, because the sample order needs them."""

    from_cycle: int
    """First cycle with these shares."""
    shares: dict[str, int]
    """Integer share, above 0, of each source in it, in the recipe's order of sources."""

    @property
    def denominator(self) -> int:
        """What the integer shares sum to."""
        return sum(self.shares.values())


@dataclass(frozen=True, kw_only=True)
class TokenizerRecord:
    """The pinned tokenizer."""

    path: str
    """Absolute path of tokenizer.json."""
    sha256: str
    """Hex digest of the file's bytes: a re-serialised file counts as another tokenizer."""
    library_version: str
    """Version of the tokenizers package at init."""
    vocab_size: int
    """Entries, added tokens included."""
    largest_id: int
    """Largest id; it, not the number of entries, decides the token width."""


@dataclass(frozen=True, kw_only=True)
class DataLine:
    """All of data.json."""

    cycle_tokens: int
    """Tokens of a cycle, before rounding down to whole updates."""
    seed: int
    """Seed of every permutation of the line."""
    segments: int
    """Slices of a cycle that each hold every stratum at its share."""
    planner_version: int
    """Version of the planning rules the line was made for."""
    eos_id: int
    """Id appended to every document."""
    token_dtype: Literal["uint16", "uint32"]
    """Width of a stored token."""
    tokenizer: TokenizerRecord
    """The pinned tokenizer."""
    sources: tuple[SourceSpec, ...]
    """In the recipe's order."""
    pieces: tuple[Piece, ...]
    """By rising first cycle; the first starts at 0."""
    max_epochs: int = 1
    """Passes over a source; 1 is the only value."""

    def source(self, name: str) -> SourceSpec:
        """The source of that nickname."""
        return next(source for source in self.sources if source.name == name)

    def piece_at(self, cycle: int) -> Piece:
        """The piece in force at a cycle."""
        return [piece for piece in self.pieces if piece.from_cycle <= cycle][-1]

    def to_json(self) -> dict[str, Any]:
        """The content of data.json."""
        return {
            "format": FORMAT,
            "planner_version": self.planner_version,
            "cycle_tokens": self.cycle_tokens,
            "seed": self.seed,
            "segments": self.segments,
            "max_epochs": self.max_epochs,
            "eos_id": self.eos_id,
            "token_dtype": self.token_dtype,
            "tokenizer": dict(vars(self.tokenizer)),
            "pieces": [
                {"from_cycle": piece.from_cycle, "shares": piece.shares, "denominator": piece.denominator}
                for piece in self.pieces
            ],
            "sources": {source.name: source.to_json() for source in self.sources},
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> DataLine:
        """Inverse of `to_json`."""
        return DataLine(
            cycle_tokens=value["cycle_tokens"],
            seed=value["seed"],
            segments=value["segments"],
            planner_version=value["planner_version"],
            max_epochs=value["max_epochs"],
            eos_id=value["eos_id"],
            token_dtype=value["token_dtype"],
            tokenizer=TokenizerRecord(**value["tokenizer"]),
            pieces=tuple(Piece(from_cycle=p["from_cycle"], shares=p["shares"]) for p in value["pieces"]),
            sources=tuple(SourceSpec.from_json(name, spec) for name, spec in value["sources"].items()),
        )

    def digest(self, cycle: int = 0) -> str:
        """Hex digest of everything that decides a token up to and with a cycle.

        Places on disk are left out, and so is what only later pieces use: appending to the recipe changes no
        digest of a cycle before the new piece.
        """
        num_pieces = sum(piece.from_cycle <= cycle for piece in self.pieces)
        if num_pieces not in self._digests:
            self._digests[num_pieces] = self._digest(self.pieces[:num_pieces])
        return self._digests[num_pieces]

    @cached_property
    def _digests(self) -> dict[int, str]:
        return {}

    def _digest(self, pieces: tuple[Piece, ...]) -> str:
        used = {name for piece in pieces for name in piece.shares}
        value = replace(
            self, pieces=pieces, sources=tuple(s for s in self.sources if s.name in used)
        ).to_json()
        value["tokenizer"].pop("path")
        value["source_order"] = list(value["sources"])
        for source in value["sources"].values():
            source.pop("folder", None)
            source.pop("revision", None)
        return sha256_json(value)


def last_written(root: Path) -> tuple[int, int, int] | None:
    """Which data.json is there, or None: another answer means that the recipe may have grown."""
    return stamp(DataPaths(root).data)


def load_data_line(root: Path) -> DataLine:
    """Read D/data.json. Raises Refused when the folder is not a data line of this version."""
    path = DataPaths(root).data
    if not path.exists():
        raise Refused(
            f"{root}: not a data line (no data.json); make one with `nstrain data init --work {root}`"
        )
    return read_record(path, FORMAT, _checked_line, way_out="restore the file that `data init` wrote")


def _checked_line(value: dict[str, Any]) -> DataLine:
    """The line of a data.json. Raises ValueError when its parts do not fit each other."""
    line = DataLine.from_json(value)
    refuse_other(value, line.to_json())
    if line.planner_version != PLANNER_VERSION:
        raise ValueError(f"planner_version {line.planner_version}, this version plans by {PLANNER_VERSION}")
    if min(line.cycle_tokens, line.segments) < 1:
        raise ValueError("cycle_tokens and segments are at least 1")
    if [piece.from_cycle for piece in line.pieces[:1]] != [0]:
        raise ValueError("the first piece begins at cycle 0")
    for source in line.sources:
        strata = {stratum.name for stratum in source.strata}
        if strata != {file.stratum for file in source.files} or min(s.tokens for s in source.strata) < 1:
            raise ValueError(f"source {source.name}: its files and its strata do not fit")
        if (source.folder is None) == (source.repo is None) or (source.repo and not source.commit):
            raise ValueError(f"source {source.name}: expected a folder, or a repository and its commit")
    names = [source.name for source in line.sources]
    for piece in line.pieces:
        if list(piece.shares) != [n for n in names if n in piece.shares] or min(piece.shares.values()) < 1:
            raise ValueError(f"the shares from cycle {piece.from_cycle} on do not fit the sources {names}")
    if unused := set(names).difference(*(piece.shares for piece in line.pieces)):
        raise ValueError(f"no piece has a share of {sorted(unused)}")
    return line
