"""Shards of a planned cycle again: compared with its manifest before they are written, and after.

The tokenized files are the caller's; nothing is tokenized here.
"""

from __future__ import annotations

from pathlib import Path

from trainer_core.data.plan.manifest import Manifest
from trainer_core.data.plan.state import DocEnds, DocRange
from trainer_core.data.prepare.assemble import ReadFile, write_segments
from trainer_core.data.tokens.open_files import OpenFiles
from trainer_core.data.tokens.shards import TokenType
from trainer_core.errors import Refused


def rebuild_shards(
    manifest: Manifest, out: Path, files: OpenFiles, read: ReadFile, token_type: TokenType
) -> None:
    """Write a cycle's shards to the new folder `out`. Raises Refused when they are not the recorded ones."""
    _check_tokens(manifest, files)
    shards = write_segments(out, manifest.segments(), manifest.streams(), read, token_type)
    if shards != manifest.shards():
        wrong = [
            a["path"]
            for made, recorded in zip(shards, manifest.shards(), strict=True)
            for a, b in zip(made, recorded, strict=True)
            if a != b
        ]
        raise Refused(
            f"cycle {manifest.cycle}: rebuilt shards {wrong} differ from the manifest; "
            "the tokenizers version or the sources are not those it was made with"
        )


def _check_tokens(manifest: Manifest, files: OpenFiles) -> None:
    """Every tokenized file has the documents that the cycle took. Raises Refused naming the others."""
    wrong: dict[Path, str] = {}
    for name, stream in manifest.streams().items():
        pieces = manifest.value["pieces"][name]
        # What was taken over from the cycle before is recorded without its number of tokens.
        taken = [None] * (len(stream) - len(pieces)) + [piece["tokens"] for piece in pieces]
        held = 0
        for docs, tokens in zip(stream, taken, strict=True):
            ends = files.counts(name, docs.path)
            assert ends is not None, docs.path
            path, found = files.path(name, docs.path), _tokens(docs, ends)
            held += found or 0
            if found is None:
                wrong.setdefault(path, f"has {len(ends):,} documents, the cycle took {docs.doc_to:,}")
            elif tokens not in (None, found):
                wrong.setdefault(
                    path,
                    f"has {found:,} tokens in its documents {docs.doc_from:,} to {docs.doc_to - 1:,}, "
                    f"the cycle took {tokens:,}",
                )
        needed = sum(s.rows.get(name, 0) * s.row_length for s in manifest.segments()) + 1
        if not wrong and held < needed:
            for docs in stream[: len(stream) - len(pieces)]:
                wrong.setdefault(
                    files.path(name, docs.path),
                    f"may have lost what the cycle took over: of {needed:,} tokens of {name} it has {held:,}",
                )
    if wrong:
        raise Refused(
            [f"cycle {manifest.cycle}: {path} {problem}; {_WAY_OUT}" for path, problem in wrong.items()]
        )


_WAY_OUT = (
    "delete it, it is made again from its source file; if that does not help, the cycle was made of other "
    "text than was pinned and cannot be made again"
)


def _tokens(docs: DocRange, ends: DocEnds) -> int | None:
    """Tokens of a range in a tokenized file; None when it does not have these documents."""
    return None if docs.doc_to > len(ends) else docs.tokens(ends)
