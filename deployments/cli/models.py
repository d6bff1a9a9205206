"""`nstrain models`: the presets with exact counts, as a table or as JSON."""

from __future__ import annotations

from typing import Any

from deployments.cli.printing import Flag, print_json, say
from trainer_core.errors import Refused
from trainer_core.host import load_host

_TABLE = "{:16} {:12} {:>9} {:>15} {:>12} {:>9} {:>8} {:>13}"


def models(*, json: Flag = False) -> int:
    """List the model presets with exact counts.

    Parameters
    ----------
    json
        Print JSON.
    """
    load_host()
    from trainer_core.ops.models import list_models

    rows, problems = list_models()
    print_json(rows) if json else say(models_text(rows))
    if problems:
        raise Refused(problems)
    return 0


def models_text(rows: list[dict[str, Any]]) -> str:
    """The table, and what its rates and bytes are."""
    head = _TABLE.format("preset", "family", "vocab", "parameters", "state", "row", "peak lr", "FLOPs/token")
    more = rows[0]["more_bytes_per_parameter"]
    rates = "peak lr: the rate that a preset was made for, to begin with in `nstrain new --peak-lr`"
    legend = (
        f"state: {rows[0]['bytes_per_parameter']} bytes a parameter in training (itself, its gradient and "
        f"two moments, in float32); {more['ema']} more with a moving average, {more['bf16']} more in bf16"
    )
    return "\n".join([head, *(line for row in rows for line in _lines(row)), "", rates, legend])


def _lines(row: dict[str, Any]) -> list[str]:
    """A preset, and below it its groups and what it can recompute."""
    flops = row["flops_per_token"][str(row["row_length"])]
    state = row["parameters"] * row["bytes_per_parameter"]
    first = _TABLE.format(
        row["name"],
        row["family"],
        f"{row['vocab_size']:,}",
        f"{row['parameters']:,}",
        f"{state / 1e9:.2f} GB" if state >= 1e8 else f"{state / 1e6:.1f} MB",
        f"{row['row_length']:,}",
        f"{row['peak_lr']:g}",
        f"{flops:.3e}",
    )
    groups = ", ".join(f"{name} {count:,}" for name, count in row["groups"].items())
    return [first, f"    {groups}", f"    ac {', '.join(row['recomputation'])}"]
