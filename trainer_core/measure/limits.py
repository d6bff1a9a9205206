"""What physics allows: FLOPs of a token, bytes of an update, and the least time of both on a known GPU.

Pure functions of a model's counts and a datasheet's rates. What a command measured is compared here with the
peaks before it is printed: a share above 1 is a wrong measurement, never a fast program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainer_core.errors import Refused
from trainer_core.measure.peaks import GpuPeaks, by_short_name
from trainer_core.models.base import Model

NORM_BYTES = 4
"""The norm reads G."""
ADAMW_BYTES = 28
"""The update reads P, G, M, V and writes P, M, V."""
ZERO_BYTES = 4
"""G is set to zero."""
EMA_BYTES = 8
"""The average is read and written."""
SHADOW_BYTES = 2
"""The bf16 weights are written."""

SHOWN = ("H100", "H200", "GB300")
"""GPUs whose limits are printed."""

ROUNDING = 1e-3
"""What a share may exceed 1 by, since clocks and datasheets are rounded."""


class Impossible(Refused):
    """More was measured than the hardware can do, so the measurement is wrong and is not printed."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The least that one GPU needs for one update of a model."""

    gpu: str
    """Short name of the GPU."""
    tokens_per_second: float
    """Tokens at the peak of bf16 FLOP/s, the update left out: 100 % MFU."""
    micro_seconds: float
    """Seconds of the FLOPs of an update's tokens at the peak, recomputation included."""
    update_seconds: float
    """Seconds of the bytes of norm and update at the memory's peak rate."""
    state_bytes: int
    """Bytes of the flat buffers."""
    memory_share: float
    """The flat buffers over the GPU's memory; above 1 they do not fit."""


def update_bytes_per_parameter(*, ema: bool, shadow: bool) -> int:
    """Least traffic of norm, update and zeroing per parameter: 36, 44 with EMA, 46 with bf16 weights too."""
    extra = EMA_BYTES * ema + SHADOW_BYTES * shadow
    return NORM_BYTES + ADAMW_BYTES + ZERO_BYTES + extra


def state_bytes_per_parameter(*, ema: bool, shadow: bool) -> int:
    """P, G, M, V in fp32: 16; 4 more for an average, 2 more for bf16 weights."""
    return 16 + 4 * ema + 2 * shadow


def limits(
    peaks: GpuPeaks,
    *,
    flops_per_token: float,
    recomputed_per_token: float,
    num_parameters: int,
    tokens_per_update: int,
    ema: bool,
    shadow: bool,
) -> Limits:
    """The floors of one update on one GPU."""
    state = num_parameters * state_bytes_per_parameter(ema=ema, shadow=shadow)
    traffic = num_parameters * update_bytes_per_parameter(ema=ema, shadow=shadow)
    hardware = flops_per_token + recomputed_per_token
    return Limits(
        gpu=peaks.name,
        tokens_per_second=peaks.bf16_flops / flops_per_token,
        micro_seconds=hardware * tokens_per_update / peaks.bf16_flops,
        update_seconds=traffic / peaks.bandwidth,
        state_bytes=state,
        memory_share=state / peaks.memory,
    )


def limits_of(model: Model, *, T: int, ac: str, tokens_per_update: int, ema: bool) -> list[dict[str, Any]]:
    """Floors of a model's bf16 training on the GPUs of SHOWN, as plain values; the model may be on meta."""
    counts = {
        "flops_per_token": model.flops_per_token(T),
        "recomputed_per_token": model.recomputed_flops_per_token(T, ac) or 0.0,
    }
    num = sum(param.numel() for param in model.parameters())
    return [
        asdict(
            limits(
                by_short_name(name),
                **counts,
                num_parameters=num,
                tokens_per_update=tokens_per_update,
                ema=ema,
                shadow=True,
            )
        )
        for name in SHOWN
    ]


def kernel_floors(model: Model, *, rows: int, T: int) -> list[dict[str, Any]]:
    """Of each kernel that only the model's family has: runs in a micro-batch, FLOPs, bytes, least seconds.

    The seconds are those of one run on the GPUs of SHOWN, at the peaks of bf16 FLOP/s and of the memory.
    """
    gpus = [by_short_name(name) for name in SHOWN]
    return [
        {
            "name": name,
            "runs": runs,
            **asdict(cost),
            "floor_seconds": {
                gpu.name: cost.seconds(flops_per_second=gpu.bf16_flops, bytes_per_second=gpu.bandwidth)
                for gpu in gpus
            },
        }
        for name, (runs, cost) in model.kernel_costs(rows, T).items()
    ]


def refuse_impossible(where: str, shares: Mapping[str, float | None]) -> None:
    """Raises Impossible with every measured share of a peak that is above 1; None = the peak is not known."""
    problems = [
        f"{what}: {share:.1%} of the peak of {where} was measured; more than 100 % cannot be, so the "
        "measurement is wrong (time a longer run; the device must have finished when the clock is read)"
        for what, share in shares.items()
        if share is not None and not share <= 1 + ROUNDING
    ]
    if problems:
        raise Impossible(problems)
