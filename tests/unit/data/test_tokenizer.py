"""The trained tokenizer: reproducible, complete over bytes, with its end token at id 0."""

import random
from pathlib import Path

import pytest

from trainer_core.data.tokens.encode import Encoder, tokenizer_facts
from trainer_core.data.tokens.train_tokenizer import EOS_ID, EOS_TOKEN, train_bpe
from trainer_core.errors import Refused


@pytest.fixture(scope="module")
def texts() -> list[str]:
    choose = random.Random(0)
    words = ["".join(choose.choices("abcdefghij", k=choose.randint(2, 9))) for _ in range(2000)]
    return [" ".join(choose.choices(words, k=200)) for _ in range(100)]


def test_the_same_texts_give_the_same_bytes(texts: list[str], tmp_path: Path) -> None:
    data = train_bpe(texts, 512)
    assert data == train_bpe(iter(texts), 512)
    assert data != train_bpe(texts[:50], 512)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    facts = tokenizer_facts(path)
    assert (facts.vocab_size, facts.largest_id, facts.added) == (512, 511, {EOS_TOKEN: EOS_ID})


def test_every_text_decodes_exactly_and_the_end_token_is_spelled(texts: list[str]) -> None:
    encoder = Encoder(train_bpe(texts, 300), eos_id=EOS_ID)
    strange = [f"{EOS_TOKEN} in text", "\x00\r\n\t", "日本語 🦆", " ".join(texts[:3]), "\ufffd"]
    for text, ids in zip(strange, encoder.encode(strange), strict=True):
        assert encoder.decode(ids) == text
        assert ids.tolist().count(EOS_ID) == 1 and ids[-1] == EOS_ID


def test_too_small_a_vocabulary_or_too_little_text_is_refused(texts: list[str]) -> None:
    with pytest.raises(Refused, match="at least 257"):
        train_bpe(texts, 256)
    with pytest.raises(Refused, match="for a vocabulary of 400"):
        train_bpe(["too little"], 400)
