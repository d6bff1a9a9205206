"""The sample corpus: real text that pip has already put on this disk, as sources, strata and a tokenizer.

`catalog` says what is taken, `collect` reads it, `write` stores it in the formats of real corpora, `build`
does all of it. Nothing is downloaded.
"""

from trainer_core.data.sample.build import build_sample

__all__ = ["build_sample"]
