"""The memory of a hippocampal layer: how fast trace and clock run, what is written, how it is recalled."""

from __future__ import annotations

from torch import Tensor

from trainer_core.models.neuronspark.hippocampal import LEAST_WRITE
from trainer_core.models.neuronspark.probes.boundaries import split_sums
from trainer_core.models.neuronspark.probes.sums import Notes, Sums, Values, like, mean, spread, total
from trainer_core.models.neuronspark.probes.tokens import Tokens


def gather_trace(notes: Notes, tokens: Tokens, *, channels: int) -> Sums:
    """Decay -tA tdt of each channel of the trace [heads x channels], its head's, summed; and tokens."""
    dt, A = notes["trace_dt"], notes["trace_A"].double()
    decay = (-A * total(dt, (0, 1))).repeat_interleave(channels)
    return {"decay": decay, "tokens": like(decay, tokens.ids.numel())}


def trace_values(sums: Sums) -> Values:
    """decay_tau = 1 / (-tA mean tdt) over the channels of the trace: _p50, _p90, _max."""
    return spread("decay_tau", sums["tokens"] / sums["decay"], 50, 90)


def gather_clock(notes: Notes, tokens: Tokens) -> Sums:
    """Steps of the clocks near boundaries and elsewhere, [H] each; from step [B, H, T] >= 0."""
    return split_sums(notes["step"].transpose(1, 2), tokens.near)


def clock_heads(sums: Sums) -> Values:
    """clock_tau = 1 / mean step of each query head [H]: tokens over which its clock runs one e-fold."""
    counted = sums["num_near"] + sums["num_elsewhere"]
    return {"clock_tau": counted / (sums["near"] + sums["elsewhere"])}


def clock_values(sums: Sums) -> Values:
    """clock_tau_p50 and _max over query heads.

    clock_boundary_step_ratio = mean step near boundaries / mean step elsewhere, each over tokens and heads.
    """
    near, elsewhere = mean(sums, "near", "num_near"), mean(sums, "elsewhere", "num_elsewhere")
    return spread("clock_tau", clock_heads(sums)["clock_tau"], 50) | {
        "clock_boundary_step_ratio": near / elsewhere
    }


def gather_write(notes: Notes, tokens: Tokens) -> Sums:
    """Write tags w of key heads [K], and tokens; from ln(w + 1e-6) [B, K, T]."""
    written = (notes["log_write"].double().exp() - LEAST_WRITE).clamp(min=0)
    w = total(written, (0, 2))
    return {"write": w, "tokens": like(w, tokens.ids.numel())}


def write_heads(sums: Sums) -> Values:
    """write = mean w of each key head [K]."""
    return {"write": sums["write"] / sums["tokens"]}


def write_values(sums: Sums) -> Values:
    """write_p50 and _max over key heads."""
    return spread("write", write_heads(sums)["write"], 50)


def gather_recall(notes: Notes, tokens: Tokens) -> Sums:
    """Sums over tokens of copy pi, novelty nu and gain gamma of each query head [H]; from [B, H, T] each."""
    pi, novelty, gain = (_over_tokens(notes[name]) for name in ("pi", "novelty", "gain"))
    counted = like(pi, tokens.ids.numel())
    return {"copy_pi": pi, "novelty": novelty, "read_gain": gain, "tokens": counted}


def recall_values(sums: Sums) -> Values:
    """copy_pi = mean pi, novelty = mean nu, read_gain = mean gamma, each over tokens and heads."""
    return {name: mean(sums, name, "tokens") for name in ("copy_pi", "novelty", "read_gain")}


def _over_tokens(x: Tensor) -> Tensor:
    return total(x, (0, 2))
