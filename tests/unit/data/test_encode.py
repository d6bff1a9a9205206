"""A document's text never becomes a control token, whatever the tokenizer does by default."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.unit.data.inputs import (
    CONTROLS,
    END,
    EOS,
    MARKERS,
    START,
    byte_tokenizer,
    dump,
    metaspace_tokenizer,
    word_tokenizer,
)
from trainer_core.data.sources import TokenizerRecord
from trainer_core.data.tokens.encode import Encoder, read_tokenizer, tokenizer_facts
from trainer_core.errors import Refused

CODE = [
    "for s in ['<s>', '</s>']: pass\n",
    '/// <param name="x">the input</param>\n',
    "#include <functional>\n",
    "cd /usr/think/bin\n",
    "</s>",
    "<think>one</think> two",
    "a <|im_start|> b",
    "a\x00b",
    "ünïcode \ufffd",
]


def decoded(tokenizer: dict[str, Any], ids: np.ndarray) -> str:
    plain = {**tokenizer, "added_tokens": [], "truncation": None}
    return str(Tokenizer.from_str(dump(plain).decode()).decode(ids.tolist(), skip_special_tokens=False))


def test_default_matching_would_read_control_tokens_here() -> None:
    naive = Tokenizer.from_str(dump({**byte_tokenizer(), "truncation": None}).decode())
    naive.encode_special_tokens = True
    ids = [naive.encode(text, add_special_tokens=False).ids for text in CODE[:4]]
    assert [any(i < len(CONTROLS) for i in each) for each in ids] == [False, True, True, True]


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_control_text_is_spelled_byte_by_byte(ignore_merges: bool) -> None:
    tokenizer = byte_tokenizer(ignore_merges=ignore_merges)
    documents = Encoder(dump(tokenizer), eos_id=EOS).encode(CODE)
    for text, ids in zip(CODE, documents, strict=True):
        assert len(ids) == len(text.encode()) + 1
        assert ids[-1] == EOS and (ids[:-1] >= len(CONTROLS)).all()
        assert decoded(tokenizer, ids[:-1]) == text


def test_merges_that_would_spell_a_control_token_are_left_out() -> None:
    tokenizer = byte_tokenizer(merged=["/think", "the"])
    tokenizer["pre_tokenizer"]["use_regex"] = False  # "/think the" is one word
    encoder = Encoder(dump(tokenizer), eos_id=EOS)
    (ids,) = encoder.encode(["/think the"])
    vocab = tokenizer["model"]["vocab"]
    assert ids.tolist() == [vocab["/thin"], vocab["k"], vocab["Ġ"], vocab["the"], EOS]


def test_only_the_own_markers_are_matched() -> None:
    tokenizer = byte_tokenizer()
    encoder = Encoder(dump(tokenizer), markers=MARKERS, eos_id=EOS)
    vocab = tokenizer["model"]["vocab"]
    (ids,) = encoder.encode(["<|im_start|> </s> <|im_end|>"])
    middle = [vocab[c] for c in "Ġ</s>Ġ"]  # no blank is stripped beside a marker
    assert ids.tolist() == [START, *middle, END, EOS]
    assert encoder.control_ids == set(range(len(CONTROLS))) - {START, END}


def test_markers_outside_the_model_vocabulary_keep_their_ids() -> None:
    tokenizer = byte_tokenizer()
    for token in CONTROLS[2:]:
        del tokenizer["model"]["vocab"][token]
    native = Tokenizer.from_str(dump(tokenizer).decode())
    (ids,) = Encoder(dump(tokenizer), markers=("<|im_end|>",), eos_id=EOS).encode(["<|im_end|>"])
    assert ids.tolist() == [native.token_to_id("<|im_end|>"), EOS]


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_metaspace_and_unigram(scheme: str) -> None:
    tokenizer = metaspace_tokenizer(scheme)
    reference = Tokenizer.from_str(dump({**tokenizer, "added_tokens": []}).decode())
    texts = ["a </s> b", "cd /usr/think", "plain words", "#include <functional>"]
    documents = Encoder(dump(tokenizer), eos_id=EOS).encode(texts)
    for text, ids in zip(texts, documents, strict=True):
        expected = " ".join(text.split()).replace(" ", "▁")
        pieces = "".join(reference.id_to_token(i) for i in ids[:-1])
        assert pieces == ("" if scheme == "never" else "▁") + expected
        assert not set(ids[:-1].tolist()) & set(range(1, len(CONTROLS)))
    (chat,) = Encoder(dump(tokenizer), markers=MARKERS, eos_id=EOS).encode(["<|im_start|>a<|im_end|>"])
    assert [chat[0], chat[-2], chat[-1]] == [START, END, EOS]


def test_an_unknown_word_may_become_the_unknown_token_but_never_the_end_token() -> None:
    tokenizer = word_tokenizer({"<unk>": 0, "</s>": 1, "alpha": 2})
    (ids,) = Encoder(dump(tokenizer), eos_id=1).encode(["alpha beta </s>"])
    assert ids.tolist() == [2, 0, 0, 1]


def test_the_guard_names_document_and_excerpt() -> None:
    tokenizer = byte_tokenizer()
    letter = tokenizer["model"]["vocab"]["q"]
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": letter, "content": "q"})
    encoder = Encoder(dump(tokenizer), eos_id=EOS)
    with pytest.raises(Refused, match=r"shelf/a\.jsonl: document 8: .*'the quick fox'"):
        encoder.encode(["fine", "the quick fox"], first_document=7, where="shelf/a.jsonl")


def test_empty_text_is_an_end_alone_and_truncation_is_off() -> None:
    encoder = Encoder(dump(byte_tokenizer()), eos_id=EOS)
    empty, long = encoder.encode(["", "x" * 1000])
    assert empty.tolist() == [EOS]
    assert len(long) == 1001


def test_ids_above_16_bits_do_not_wrap(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "</s>": 1, "a": 65535, "b": 65536, "c": 131072}
    path = tmp_path / "tokenizer.json"
    path.write_bytes(dump(word_tokenizer(vocab)))
    facts = tokenizer_facts(path)
    assert (facts.vocab_size, facts.largest_id, facts.token_dtype) == (5, 131072, "uint32")
    (ids,) = Encoder(path.read_bytes(), eos_id=1).encode(["a b c"])
    assert ids.dtype == np.uint32 and ids.tolist() == [65535, 65536, 131072, 1]


def test_a_largest_id_of_65535_fits_16_bits(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(dump(word_tokenizer({"<unk>": 0, "</s>": 1, "a": 65535})))
    assert tokenizer_facts(path).token_dtype == "uint16"
    (ids,) = Encoder(path.read_bytes(), eos_id=1).encode(["a"])
    assert ids.dtype == np.uint16 and ids.tolist() == [65535, 1]


def test_missing_end_token_and_unknown_markers_are_refused_together() -> None:
    with pytest.raises(Refused) as refused:
        Encoder(dump(byte_tokenizer()), markers=("<nope>",), eos_id=99_999)
    assert len(refused.value.problems) == 2
    assert "99999" in refused.value.problems[1] and "'</s>': 1" in refused.value.problems[1]


def test_the_end_token_cannot_be_a_marker() -> None:
    with pytest.raises(Refused, match="end-of-document token"):
        Encoder(dump(byte_tokenizer()), markers=("</s>",), eos_id=EOS)


def test_the_copy_has_a_digest_of_its_content_and_markers() -> None:
    tokenizer = byte_tokenizer()
    pretty = dump(tokenizer).replace(b": ", b":   ")
    digests = [
        Encoder(dump(tokenizer), eos_id=EOS).digest,
        Encoder(pretty, eos_id=EOS).digest,
        Encoder(dump(tokenizer), markers=MARKERS, eos_id=EOS).digest,
        Encoder(dump(byte_tokenizer(merged=["the"])), eos_id=EOS).digest,
    ]
    assert digests[0] == digests[1] and len(set(digests)) == 3


@pytest.mark.parametrize("eos_id", [-1, 1 << 32, 1 << 70])
def test_an_end_of_document_id_that_no_token_can_have(eos_id: int) -> None:
    with pytest.raises(Refused, match=f"end-of-document id {eos_id} is not in the tokenizer"):
        Encoder(dump(byte_tokenizer()), eos_id=eos_id)


def test_default_control_ids_are_counted_and_texts_decode() -> None:
    encoder = Encoder(dump(byte_tokenizer()), eos_id=EOS)
    assert encoder.default_control_ids(["x<s>", "y"]) == 1
    (ids,) = encoder.encode(["x <s> y"])
    assert encoder.decode(ids) == "x <s> y"


def test_another_tokenizer_file_is_refused_with_both_hashes(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(dump(byte_tokenizer()))
    facts = tokenizer_facts(path)
    record = TokenizerRecord(
        path=str(path),
        sha256=facts.sha256,
        library_version=facts.library_version,
        vocab_size=facts.vocab_size,
        largest_id=facts.largest_id,
    )
    assert read_tokenizer(record) == path.read_bytes()
    swapped = byte_tokenizer()
    swapped["model"]["vocab"] |= {"a": swapped["model"]["vocab"]["b"], "b": swapped["model"]["vocab"]["a"]}
    path.write_bytes(dump(swapped))
    with pytest.raises(Refused) as refused:
        read_tokenizer(record)
    assert facts.sha256 in str(refused.value) and tokenizer_facts(path).sha256 in str(refused.value)
    path.unlink()
    with pytest.raises(Refused, match="does not exist"):
        read_tokenizer(record)


def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": 3}')
    with pytest.raises(Refused, match=r"tokenizer\.json: not a tokenizer"):
        tokenizer_facts(path)
