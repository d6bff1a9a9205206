"""One file of a source as it is read for training: its documents without the held-out ones, and the counts.

Decides what is held out before anything is encoded. Never tokenizes and never writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from trainer_core.data.sources import SourceSpec
from trainer_core.data.text.documents import Document, ReadCounts, document_text
from trainer_core.data.text.read import iter_documents
from trainer_core.data.tokens.fingerprints import Fingerprints
from trainer_core.data.tokens.holdout import Holdout

# Small, so that the library finds the memory of one batch in the caches when it works on the next.
_BATCH_DOCUMENTS = 16
_BATCH_CHARACTERS = 1 << 18


class Reading:
    """Reads one file once."""

    def __init__(self, spec: SourceSpec, origin: Path) -> None:
        self._spec, self._origin = spec, origin
        self._holdout = Holdout(identity=spec.identity, fraction=spec.heldout)
        self._counts = ReadCounts()
        self._heldout = self._characters = 0
        self.fingerprints = Fingerprints()
        """Hashes of the documents' texts."""

    def batches(self) -> Iterator[list[Document]]:
        """Every document that is not held out, in the file's order, in batches that are never large."""
        batch: list[Document] = []
        characters = 0
        for document in iter_documents(self._origin, self._spec.text, self._counts, self._spec.markers):
            text = document_text(document)
            data = text.encode("utf-8")
            if self._holdout.holds(data):
                self._heldout += 1
                continue
            self.fingerprints.add(data)
            batch.append(document)
            characters += len(text)
            if len(batch) == _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
                self._characters += characters
                yield batch
                batch, characters = [], 0
        self._characters += characters
        if batch:
            yield batch

    def metadata(self) -> dict[str, str]:
        """The counts, as a tokenized file carries them; complete when `batches` has ended."""
        return {
            "heldout_docs": str(self._heldout),
            "characters": str(self._characters),
            "duplicates": str(self.fingerprints.duplicates),
            "skipped": json.dumps(self._counts.to_json(), sort_keys=True),
        }
