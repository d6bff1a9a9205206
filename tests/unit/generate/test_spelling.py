"""Text appears in whole characters, and its pieces joined are the whole text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from trainer_core.generate.spelling import Speller


def bytes_to_text(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def pieces(ids: Sequence[int]) -> list[str]:
    speller = Speller(bytes_to_text)
    return [*(speller.add(i) for i in ids), speller.rest()]


def test_a_character_appears_with_its_last_byte() -> None:
    assert pieces("aß€😀b".encode()) == ["a", "", "ß", "", "", "€", "", "", "", "😀", "b", ""]


def test_what_stays_broken_appears_at_the_end() -> None:
    assert pieces(b"a\xf0\x9f") == ["a", "", "", "\ufffd"]
    assert pieces(b"a\xffb") == ["a", "", "\ufffdb", ""]


@settings(max_examples=40)
@given(st.text(max_size=12))
def test_pieces_of_text_join_to_it(text: str) -> None:
    assert "".join(pieces(text.encode("utf-8"))) == text


@settings(max_examples=60)
@given(st.lists(st.sampled_from([0x41, 0x80, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xFF]), max_size=12))
def test_pieces_of_any_bytes_join_to_their_text(ids: list[int]) -> None:
    assert "".join(pieces(ids)) == bytes_to_text(ids)


def test_a_space_before_a_word_depends_on_what_stood_before() -> None:
    words = {"▁a": 0, "▁bc": 1, "d": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="d"))
    tokenizer.decoder = decoders.Metaspace()

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    assert decode([1]) == "bc"
    speller = Speller(decode)
    assert [speller.add(i) for i in (0, 1, 2, 1)] == ["a", " bc", "d", " bc"]
    assert [Speller(decode, before=[0]).add(i) for i in (1, 2)] == [" bc", "d"]


def test_what_stood_before_is_not_told_again() -> None:
    speller = Speller(bytes_to_text, before=b"\xff")
    assert (speller.add(0x62), speller.rest(), speller.rest()) == ("b", "", "")
