"""The speed of training a 6.84M Llama on a CPU against the Trainer of transformers and a plain loop.

    python -m benchmarks.throughput [--compiled]

Contenders are those of `nstrain bench --against`: alternated in one process, one thread, CPU seconds, same
weights and rows, losses within 1e-3. The bars hold where the processor has bf16 matrix products; where it
has none, bf16 is emulated and slow for everyone, so fp32 alone is measured, against a bar of its own. Exits
1 when a bar is missed by more than 10 %. `--compiled` adds those of ours that compile the head's loss or the
model: a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from benchmarks.contest import table
from trainer_core.kernels.processor import has_bf16_matmul
from trainer_core.measure.against.compare import THEIRS, compare, ours, ratios
from trainer_core.measure.throughput import Workload

WORKLOAD = Workload(
    model="llama",
    config={"layers": 6, "width": 256, "heads": 4, "ffn": 688},
    vocab_size=8_192,
    seq_len=512,
    rows=4,
)
"""6.84M parameters; 2,048 tokens per update."""

SLACK = 1.1
ROUNDS = 4

Bars = Mapping[str, Mapping[str, float]]
"""How often faster each of ours must be than each of theirs."""

BF16_BARS: Bars = {
    "nstrain-bf16": {"hf-trainer-fp32": 1.75, "hf-trainer-bf16": 1.15},
    "nstrain-bf16-ce-compiled": {"hf-trainer-fp32": 2.0, "hf-trainer-bf16": 1.35},
    "nstrain-bf16-compiled": {"hf-trainer-fp32": 2.25, "hf-trainer-bf16": 1.5, "nanogpt-bf16": 1.4},
}
FP32_BARS: Bars = {
    "nstrain-fp32": {"hf-trainer-fp32": 1.0},
    "nstrain-fp32-ce-compiled": {"hf-trainer-fp32": 1.0},
    "nstrain-fp32-compiled": {"hf-trainer-fp32": 1.0},
}
"""Both compute the same products in fp32, so what can be won is little: it must not be slower."""


def main(arguments: Sequence[str]) -> int:
    """Print the comparison; 1 when a bar is missed."""
    compiled, native = "--compiled" in arguments, has_bf16_matmul()
    bars = BF16_BARS if native else FP32_BARS
    theirs = {name: make for group in THEIRS.values() for name, make in group.items()}
    if not native:
        print("no bf16 matrix products here: only fp32 is measured")
        theirs = {name: make for name, make in theirs.items() if name.endswith("-fp32")}
    own = ours("bf16" if native else "fp32", compile="model" if compiled else "none")
    results = compare(WORKLOAD, {**own, **theirs}, rounds=ROUNDS)
    head = ["one thread, best update", "CPU ms", "tokens per CPU s", "first loss"]
    rows = [
        (name, f"{r.cpu_seconds * 1e3:.0f}", f"{r.tokens_per_cpu_second:,.0f}", f"{r.losses[0]:.4f}")
        for name, r in results.items()
    ]
    print(table(head, rows))
    reached = ratios(results)
    missed = missing(reached, bars)
    for name, others in reached.items():
        for other, ratio in others.items():
            bar = bars.get(name, {}).get(other)
            against = "no bar" if bar is None else f"bar {bar} with {SLACK - 1:.0%} slack"
            print(f"{name}: {ratio:.2f} x {other}, {against}")
    for problem in missed:
        print(f"missed: {problem}", file=sys.stderr)
    return int(bool(missed))


def missing(reached: Mapping[str, Mapping[str, float]], bars: Bars) -> list[str]:
    """The bars of what was measured that are missed by more than the slack."""
    return [
        f"{name} is {ratio:.2f} x {other}, bar {bars[name][other]}"
        for name, others in reached.items()
        for other, ratio in others.items()
        if ratio * SLACK < bars.get(name, {}).get(other, 0.0)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
