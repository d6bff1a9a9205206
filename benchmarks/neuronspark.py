"""The cost of a NeuronSpark on a CPU beside a Llama of its size, and where it goes.

    python -m benchmarks.neuronspark

Forward and backward pass on 8 rows of 256 tokens in fp32: alternated in one process, one thread, CPU seconds,
best rounds. With a small vocabulary the layers are compared, with a larger one the head, which both have
alike, is a part: ours, which never holds all logits, and a plain one, which makes them all and gives both
models more to do in common. The table at the end tells a step of the smallest by operators of ours, each with
both passes and all that is inside; the profiler's own cost is in it. Exits 1 when a bar is missed by more
than 10 %.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.contest import contest, table
from trainer_core.models.base import Model
from trainer_core.models.registry import build

ROWS, LENGTH = 8, 256

LLAMAS: Mapping[str, Mapping[str, int]] = {
    "nano-cpu": {"layers": 6, "width": 128, "heads": 4, "ffn": 352},
    "micro-cpu": {"layers": 6, "width": 192, "heads": 6, "ffn": 512},
}
"""The Llama that is as wide and as large as each NeuronSpark."""

BARS: Mapping[int, float] = {512: 1.8, 4_096: 1.4}
"""How many times the CPU seconds of the Llama are allowed, by vocabulary."""

CASES = ((512, "ours"), (4_096, "ours"), (4_096, "plain"))
"""Vocabularies and heads that are compared."""

SLACK = 1.1
ROUNDS = 24
SHOWN = 14

OURS = r"nstrain(?:::|_)(\w+?)(?:_default)?(?:_?[Bb]ackward)?$|^_(\w+?)(?:Backward)?$"
"""How a profile names what is ours: operators and autograd functions, both passes."""

Key = tuple[str, int, str]
"""Preset, vocabulary, head."""


def main() -> int:
    """Print the comparison and the table of operators; 1 when a bar is missed."""
    torch.set_num_threads(1)
    reached = {(name, *case): measured(name, *case) for name in LLAMAS for case in CASES}
    rows = [
        (
            name,
            f"{vocab:,}",
            head,
            f"{per_token[0]:.0f}",
            f"{per_token[1]:.0f}",
            f"{ratio(per_token):.2f}",
            BARS[vocab],
        )
        for (name, vocab, head), per_token in reached.items()
    ]
    print(table(["CPU us per token", "vocabulary", "head", "NeuronSpark", "Llama", "ratio", "bar"], rows))
    print()
    times = times_by_operator(build("nano-cpu", None, 512, 0), 512)
    whole = sum(times.values())
    shown = [(name, f"{s * 1e6:.0f}", f"{s / whole:.1%}") for name, s in times.most_common(SHOWN)]
    print(table(["nano-cpu at 512, where it goes", "us per token", "share"], shown))
    missed = missing({key: ratio(per_token) for key, per_token in reached.items()})
    for problem in missed:
        print(f"missed: {problem}", file=sys.stderr)
    return int(bool(missed))


def pair(name: str, vocab: int) -> tuple[Model, Model]:
    """The NeuronSpark and its Llama."""
    return build(name, None, vocab, 0), build("llama", LLAMAS[name], vocab, 0)


def step(model: Model, vocab: int, head: str = "ours") -> Callable[[], None]:
    """A forward and a backward pass of the model on rows of its own."""
    ids = torch.randint(vocab, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0))

    def run() -> None:
        total: Tensor
        if head == "plain":
            total = F.cross_entropy(model.logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        else:
            total = model.loss(ids[:, :-1], ids[:, 1:])[0]
        total.backward()  # type: ignore[no-untyped-call]

    return run


def measured(name: str, vocab: int, head: str) -> tuple[float, float]:
    """CPU microseconds per token of the NeuronSpark and of its Llama."""
    models = dict(zip(("ours", "theirs"), pair(name, vocab), strict=True))
    steps = {which: step(model, vocab, head) for which, model in models.items()}
    for warm in steps.values():
        warm()
    seconds = contest(steps, rounds=ROUNDS)
    ours, theirs = (seconds[which] / (ROWS * LENGTH) * 1e6 for which in models)
    return ours, theirs


def ratio(per_token: tuple[float, float]) -> float:
    """Ours over theirs."""
    return per_token[0] / per_token[1]


def missing(ratios: Mapping[Key, float]) -> list[str]:
    """The bars that are missed."""
    return [
        f"{name} at a vocabulary of {vocab:,} (head: {head}) costs {found:.2f} of a Llama, bar {BARS[vocab]}"
        for (name, vocab, head), found in ratios.items()
        if found > BARS[vocab] * SLACK
    ]


def times_by_operator(model: Model, vocab: int) -> Counter[str]:
    """Seconds per token by the operator of ours that they are spent in, outside of them by torch's."""
    run = step(model, vocab)
    run()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return by_operator(seen.events() or (), ROWS * LENGTH)


def by_operator(events: Iterable[Any], tokens: int) -> Counter[str]:
    """Own times of a profile's events, summed by `owner`."""
    times: Counter[str] = Counter()
    for event in events:
        times[owner(event)] += event.self_cpu_time_total / 1e6 / tokens
    return times


def owner(event: Any) -> str:
    """The outermost operator of ours around an event; else its own name, all products of matrices as one."""
    found, around = None, event
    while around is not None:
        ours = re.search(OURS, around.name)
        if ours is not None:
            found = ours[1] or ours[2]
        around = around.cpu_parent
    plain: str = found or ("products of matrices" if event.name in ("aten::mm", "aten::bmm") else event.name)
    return plain


if __name__ == "__main__":
    sys.exit(main())
