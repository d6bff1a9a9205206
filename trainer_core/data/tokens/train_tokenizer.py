"""A byte-level BPE tokenizer trained on given texts: the same texts in the same order give the same bytes.

Never chooses the texts and never writes files. The vocabulary always holds all 256 bytes, so every text can
be spelled and decoded exactly, and the end-of-document token, id 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer_core.errors import Refused

EOS_TOKEN = "<|endoftext|>"
EOS_ID = 0
SMALLEST_VOCABULARY = 257


def train_bpe(texts: Iterable[str], vocab_size: int) -> bytes:
    """Train and return tokenizer.json. Raises Refused when the texts cannot fill the vocabulary."""
    if vocab_size < SMALLEST_VOCABULARY:
        raise Refused(
            f"vocab_size {vocab_size}: expected at least {SMALLEST_VOCABULARY} (all bytes and {EOS_TOKEN})"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise Refused(
            f"the texts hold only {tokenizer.get_vocab_size()} tokens for a vocabulary of {vocab_size}; "
            "give more text or ask for fewer"
        )
    assert tokenizer.token_to_id(EOS_TOKEN) == EOS_ID
    return str(tokenizer.to_str(pretty=True)).encode("utf-8") + b"\n"
