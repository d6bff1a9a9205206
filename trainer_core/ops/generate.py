"""`nstrain generate`: texts of a trained model, a piece at a time as they are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer_core.data.tokens.encode import load_tokenizer
from trainer_core.engine.determinism import exactness_of
from trainer_core.errors import Refused
from trainer_core.generate.continuation import continuation
from trainer_core.generate.sampling import Sampler, Sampling
from trainer_core.generate.sources import Speaker, load_speaker
from trainer_core.generate.spelling import Speller


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for."""

    prompt: str
    """What the text begins with; may be empty."""
    sampling: Sampling = field(default_factory=Sampling)
    """How tokens are chosen."""
    max_new_tokens: int = 128
    """Most tokens behind the prompt."""
    samples: int = 1
    """How many texts."""
    seed: int = 0
    """Seed of the draws."""
    stop_at_end: bool = True
    """Whether a text ends where the model ends its document."""

    def problems(self) -> list[str]:
        """What is wrong with the values, by the name of their option."""
        found = self.sampling.problems()
        try:
            self.prompt.encode("utf-8")
        except UnicodeEncodeError:
            found.append(f"--prompt {self.prompt!r}: is no UTF-8 text")
        for option, value, least in (
            ("--max-new-tokens", self.max_new_tokens, 1),
            ("--num-samples", self.samples, 1),
            ("--seed", self.seed, 0),
        ):
            if value < least:
                found.append(f"{option} {value}: expected at least {least}")
        return found


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One text."""

    prompt: str
    """What it begins with."""
    text: str
    """What the model made of it, without the prompt."""
    ids: tuple[int, ...]
    """The tokens behind the prompt, the end of the document included."""
    ended: bool
    """Whether the model ended its document."""


def generate_texts(
    source: Path,
    request: Request,
    *,
    at: int | None = None,
    ema: bool = False,
    device: str = "cpu",
    begin: Callable[[int], None] = lambda number: None,
    show: Callable[[str], None] = lambda piece: None,
) -> list[Sample]:
    """Texts of a line's checkpoint or an exported folder, one after another.

    `begin` is called before each with its number, `show` with the pieces of its text, the prompt first, and a
    line's end. Raises Refused with every problem of the request.
    """
    problems = request.problems()
    if at is not None and at < 0:
        problems.append(f"--at {at}: expected an update, 0 or more")
    if device == "cuda" and not torch.cuda.is_available():
        problems.append("--device cuda: torch sees no GPU here")
    if problems:
        raise Refused(problems)
    with exactness_of("exact"):
        speaker = load_speaker(source, at=at, ema=ema)
        speaker.model.to(device)
        writer = _Writer.of(speaker, request)
        samples = []
        for number in range(request.samples):
            begin(number)
            show(request.prompt)
            samples.append(writer.sample(number, show))
            show("\n")
    return samples


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """A model about to write what was asked for."""

    speaker: Speaker
    """The model."""
    tokenizer: Any
    """Its tokenizer."""
    request: Request
    """What was asked for."""
    prompt: list[int]
    """Tokens of the prompt, behind the end of a document as in training."""

    @classmethod
    def of(cls, speaker: Speaker, request: Request) -> _Writer:
        """Raises Refused when the model does not read as many tokens."""
        tokenizer = load_tokenizer(speaker.tokenizer_json, "tokenizer.json")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        ids = tokenizer.encode(request.prompt, add_special_tokens=False).ids
        longest, new, begun = speaker.model.config.rope_max_seq_len, request.max_new_tokens, 1 + len(ids)
        if begun + new > longest:
            raise Refused(
                f"--max-new-tokens {new}: the model reads {longest} tokens at most, the prompt has {begun}; "
                + (f"ask for {longest - begun} or fewer" if longest > begun else "shorten it")
            )
        return cls(speaker=speaker, tokenizer=tokenizer, request=request, prompt=[speaker.eos_id, *ids])

    def sample(self, number: int, show: Callable[[str], None]) -> Sample:
        """Text number `number`, whose pieces are shown as they come."""
        end = self.speaker.eos_id if self.request.stop_at_end else None
        speller = Speller(self._decode, before=self.prompt)
        sampler = Sampler(self.request.sampling, seed=self.request.seed, sample=number)
        ids: list[int] = []
        pieces: list[str] = []
        for token in continuation(
            self.speaker.model, self.prompt, sampler, max_new=self.request.max_new_tokens, end=end
        ):
            ids.append(token)
            pieces.append("" if token == end else speller.add(token))
            show(pieces[-1])
        pieces.append(speller.rest())
        show(pieces[-1])
        return Sample(prompt=self.request.prompt, text="".join(pieces), ids=tuple(ids), ended=ids[-1] == end)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))
