"""Runs rows through the model, gathers the sums of each layer, and names the numbers.

Names are dendritic/... and hippocampal/... over all layers of the kind, with layer<NN>/ after the kind for
one layer, where <name>_head<h> is one head. One row is one pass, and of a pass one layer's inner quantities
are in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer_core.models.neuronspark.config import NeuronSparkConfig
from trainer_core.models.neuronspark.probes import (
    attention,
    boundaries,
    firing,
    memory,
    product_keys,
    retention,
    rope_energy,
)
from trainer_core.models.neuronspark.probes.sums import Notes, Sums, Values, added, beside
from trainer_core.models.neuronspark.probes.tokens import Tokens

if TYPE_CHECKING:
    from trainer_core.models.neuronspark.model import NeuronSpark

EVERY = 2
"""Of rows up to the training's length the weights of pool reads are looked at in every second one."""
EVERY_LONG = 4
"""Of longer rows in every fourth one."""


def _no_heads(sums: Sums) -> Values:
    """A subject without numbers of single heads."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Something to be known of a layer."""

    gather: Callable[[Notes, Tokens], Sums]
    """The sums of a pass."""
    values: Callable[[Sums], Values]
    """Scalars by name, of the sums of one or several layers."""
    heads: Callable[[Sums], Values] = _no_heads
    """One value per head by name, of the sums of one layer."""


def subjects_of(c: NeuronSparkConfig) -> dict[str, tuple[Subject, ...]]:
    """Those of each kind of layer."""
    trace = partial(memory.gather_trace, channels=c.trace_channels)
    table = partial(product_keys.gather, table=c.pkm_keys**2)
    energy = partial(rope_energy.gather, theta=c.rope_theta)
    return {
        "dendritic": (
            Subject(gather=retention.gather, values=retention.values),
            Subject(gather=firing.gather_soma, values=firing.soma_values),
            Subject(gather=boundaries.gather, values=boundaries.values),
        ),
        "hippocampal": (
            Subject(gather=trace, values=memory.trace_values),
            Subject(gather=memory.gather_clock, values=memory.clock_values, heads=memory.clock_heads),
            Subject(gather=memory.gather_write, values=memory.write_values, heads=memory.write_heads),
            Subject(gather=firing.gather, values=firing.values),
            Subject(gather=memory.gather_recall, values=memory.recall_values),
            Subject(gather=table, values=partial(product_keys.values, shared=c.pkm_shared)),
            Subject(gather=energy, values=rope_energy.values, heads=rope_energy.heads),
            Subject(gather=attention.gather, values=attention.values, heads=attention.heads),
        ),
    }


class Watch:
    """Takes the notes of a pass and keeps the sums of each layer, in the order of its subjects."""

    def __init__(self, subjects: Sequence[Sequence[Subject]]) -> None:
        self.subjects = subjects
        self.sums: list[list[Sums]] = [[{} for _ in layer] for layer in subjects]

    def run(self, model: NeuronSpark, tokens: Tokens) -> None:
        """One pass."""
        layer, notes = 0, Notes()

        def note(i: int, name: str, value: Tensor) -> None:
            nonlocal layer, notes
            if i != layer:
                self._gather(layer, notes, tokens)
                layer, notes = i, Notes()
            notes[name] = value

        model.hidden(tokens.ids, note=note)
        self._gather(layer, notes, tokens)

    def _gather(self, layer: int, notes: Notes, tokens: Tokens) -> None:
        now = [subject.gather(notes, tokens) for subject in self.subjects[layer]]
        self.sums[layer] = [added(a, b) for a, b in zip(self.sums[layer], now, strict=True)]


@torch.no_grad()
def probe(model: NeuronSpark, rows: Tensor, *, train_length: int, eos: int) -> dict[str, float]:
    """Every number that is defined on rows [R, L] int64, by name; none without a token."""
    if not rows.numel():
        return {}
    c = model.config
    kinds = ["hippocampal" if c.is_hippocampal(i) else "dendritic" for i in range(c.layers)]
    subjects = subjects_of(c)
    watch = Watch([subjects[kind] for kind in kinds])
    every = EVERY_LONG if rows.shape[1] > train_length else EVERY
    rows = rows.to(model.embedding.weight.device)
    for r, ids in enumerate(torch.split(rows, 1)):
        looked = r % every == 0
        watch.run(model, Tokens(ids=ids, eos=eos, train_length=train_length, attention=looked))
    found: dict[str, Tensor] = {}
    sums = [[{name: x.cpu() for name, x in each.items()} for each in layer] for layer in watch.sums]
    for kind in dict.fromkeys(kinds):
        layers = {i: sums[i] for i in range(c.layers) if kinds[i] == kind}
        found |= {f"{kind}/{name}": value for name, value in _named(subjects[kind], layers)}
    numbers = {name: float(value) for name, value in found.items()} | _of_all(c, rows, train_length, eos)
    return {
        name: value
        for name, value in numbers.items()
        if math.isfinite(value) and name.partition("/")[0] in kinds
    }


def _named(subjects: Sequence[Subject], layers: Mapping[int, Sequence[Sums]]) -> Iterator[tuple[str, Tensor]]:
    """The numbers of each layer and of all of them together."""
    for at, subject in enumerate(subjects):
        yield from subject.values(beside([sums[at] for sums in layers.values()])).items()
        for i, sums in layers.items():
            label = f"layer{i:02d}"
            for name, value in subject.values(sums[at]).items():
                yield f"{label}/{name}", value
            for name, each in subject.heads(sums[at]).items():
                for h, value in enumerate(each):
                    yield f"{label}/{name}_head{h}", value


def _of_all(c: NeuronSparkConfig, rows: Tensor, train_length: int, eos: int) -> dict[str, float]:
    """What is the same for all layers of a kind.

    dendritic/boundaries              tokens of the rows that end a document with another one after them
    hippocampal/rope_ext_pairs_frac   extended pairs / all pairs of a head
    """
    pairs = c.head_dim // 2
    extended = pairs - rope_energy.first_extended(c.rope_theta, c.head_dim, train_length)
    return {
        "dendritic/boundaries": float((rows[:, :-1] == eos).sum()),
        "hippocampal/rope_ext_pairs_frac": extended / pairs,
    }
