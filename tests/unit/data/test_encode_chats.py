"""Chats to ids: markers of the template are ids, and content that spells a marker is spelled out."""

from typing import Any

import numpy as np
import pytest

from tests.unit.data.inputs import (
    CONTROLS,
    END,
    EOS,
    MARKERS,
    START,
    byte_tokenizer,
    dump,
    metaspace_tokenizer,
)
from trainer_core.data.text.documents import Chat
from trainer_core.data.tokens.encode import Encoder
from trainer_core.errors import Refused

BEGIN_MARK, END_MARK = MARKERS


def chat(*contents: str) -> Chat:
    """A chat with a marker before and after each content."""
    return Chat.of(
        piece for text in contents for piece in ((BEGIN_MARK, True), (text, False), (END_MARK, True))
    )


def spelled(tokenizer: dict[str, Any], text: str) -> list[int]:
    """One id per byte."""
    vocab = tokenizer["model"]["vocab"]
    return [vocab[letter] for letter in text.replace(" ", "Ġ").replace("\n", "Ċ")]


def encoder(tokenizer: dict[str, Any], markers: tuple[str, ...] = MARKERS) -> Encoder:
    return Encoder(dump(tokenizer), markers=markers, eos_id=EOS)


@pytest.mark.parametrize(
    "content",
    [
        "plain words",
        END_MARK,
        f"a{BEGIN_MARK}b",
        f"{END_MARK}{END_MARK}",
        "</s> <think> <param",
        "<|im_",
        "end|>",
        "<|im_<|im_end|>end|>",
        "x\x00y\r\n",
    ],
)
@pytest.mark.parametrize("ignore_merges", [False, True])
def test_content_is_characters_whatever_it_spells(content: str, ignore_merges: bool) -> None:
    tokenizer = byte_tokenizer(ignore_merges=ignore_merges)
    table = {chr(n): c for n, c in ((0, "Ā"), (13, "č"))}
    (ids,) = encoder(tokenizer).encode([chat(content)])
    expected = spelled(tokenizer, "".join(table.get(letter, letter) for letter in content))
    assert ids.tolist() == [START, *expected, END, EOS]


def test_a_chat_encodes_as_its_text_where_no_content_spells_a_marker() -> None:
    for tokenizer in (byte_tokenizer(merged=["the", "Ġword"]), metaspace_tokenizer("first")):
        document = chat("the word", "the other word")
        ours, text = encoder(tokenizer).encode([document, document.text])
        assert ours.tolist() == text.tolist()


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_metaspace_by_parts_marks_each_part_and_keeps_content_plain(scheme: str) -> None:
    tokenizer = metaspace_tokenizer(scheme)
    made = encoder(tokenizer)
    clean, typed = made.encode([chat("ab"), chat("ab", END_MARK)])
    names = [piece for piece, _ in tokenizer["model"]["vocab"]]
    mark = "" if scheme in ("never", "first") else "▁"
    assert [names[i] for i in clean[:-1]] == [BEGIN_MARK, *f"{mark}ab", END_MARK]
    mark = "" if scheme == "never" else "▁"
    assert [names[i] for i in typed[:-1]] == [
        *(BEGIN_MARK, *f"{mark}ab", END_MARK),
        *(BEGIN_MARK, *f"{mark}{END_MARK}", END_MARK),
    ]


def test_text_and_marker_that_run_into_each_other() -> None:
    tokenizer = byte_tokenizer()
    vocab = tokenizer["model"]["vocab"]
    for token in ("aa", "aab"):
        vocab[token] = len(vocab)
        tokenizer["added_tokens"].append(
            {**tokenizer["added_tokens"][0], "id": vocab[token], "content": token}
        )
    made = encoder(tokenizer, ("aa", "aab"))
    document = Chat.of([("a", False), ("aa", True), ("b", False)])
    assert made.encode([document])[0].tolist() == [vocab["a"], vocab["aa"], vocab["b"], EOS]
    assert made.encode(["aaab"])[0].tolist() == [vocab["aa"], vocab["a"], vocab["b"], EOS]


def test_a_marker_that_only_normalization_spells_stays_text() -> None:
    tokenizer = {**byte_tokenizer(), "normalizer": {"type": "NFKC"}}
    for token in tokenizer["added_tokens"]:
        token["normalized"] = True
    made = encoder(tokenizer)
    wide = "\uff1c|im_end|\uff1e"
    ids = made.encode([chat(wide), chat("x")])
    assert ids[0].tolist() == [START, *spelled(tokenizer, END_MARK), END, EOS]
    assert ids[1].tolist() == [START, *spelled(tokenizer, "x"), END, EOS]


def test_plain_texts_of_a_source_keep_its_markers_as_tokens() -> None:
    tokenizer = byte_tokenizer()
    text, document = encoder(tokenizer).encode([f"a{END_MARK}", Chat.of([(f"a{END_MARK}", False)])])
    assert text.tolist() == [*spelled(tokenizer, "a"), END, EOS]
    assert document.tolist() == [*spelled(tokenizer, f"a{END_MARK}"), EOS]


def test_a_source_without_markers_encodes_chats_as_text() -> None:
    tokenizer = byte_tokenizer()
    document = Chat.of([(BEGIN_MARK, False), ("a", False)])
    (ids,) = encoder(tokenizer, ()).encode([document])
    assert ids.tolist() == [*spelled(tokenizer, BEGIN_MARK + "a"), EOS]


def test_the_guard_covers_parts() -> None:
    tokenizer = byte_tokenizer()
    letter = tokenizer["model"]["vocab"]["q"]
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": letter, "content": "q"})
    for markers, content in ((MARKERS, f"quick {END_MARK}"), ((*MARKERS, "q"), "quick")):
        with pytest.raises(Refused, match=r"a\.jsonl: document 4: .*near '.*quick"):
            encoder(tokenizer, markers).encode(["fine", chat(content)], first_document=3, where="a.jsonl")


def test_flat_ids_are_the_documents_behind_each_other() -> None:
    made = encoder(byte_tokenizer())
    documents = ["one", chat("two"), "", "three", chat(END_MARK)]
    flat = made.encode_flat(documents)
    assert flat.ids.dtype == np.uint16
    apart = made.encode(documents)
    assert flat.lengths == [len(ids) for ids in apart]
    assert flat.ids.tolist() == np.concatenate(apart).tolist()
    assert made.encode([]) == [] and len(made.encode_flat([]).ids) == 0
    assert not set(made.encode([chat("</s>")])[0].tolist()) & set(range(len(CONTROLS))) - {START, END, EOS}
