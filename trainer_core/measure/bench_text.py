"""The values of `nstrain bench` as text for people. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Value = Mapping[str, Any]


def bench_text(found: Value) -> str:
    """What was measured."""
    lines = [
        _headline(found["workload"], found["parameters"]),
        f"on {found['device']}: {found['tokens_per_second']:,.0f} tokens/s"
        + _if(found["tokens_per_cpu_second"], ", {:,.0f} per CPU second"),
        "an update takes "
        + ", ".join(f"{kind} {seconds * 1e3:.2f} ms" for kind, seconds in found["part_seconds"].items())
        + f"; with everything {found['update_seconds'] * 1e3:.2f} ms",
        f"{found['flops_per_token']:.3e} FLOPs per token, {found['flops_per_second'] / 1e12:.3f} TFLOP/s; "
        + _utilisation(found),
        f"norm and update move at least {found['update_bytes_per_parameter']} bytes per parameter: "
        f"{found['update_bandwidth'] / 1e9:.1f} GB/s" + _if(found["update_share"], ", {:.1%} of the peak"),
        "",
        _table(("memory", "MB"), [(k, f"{v / 1e6:,.1f}") for k, v in found["memory_bytes"].items()]),
        "",
        _table(
            ("own time in an update", "calls", "ms", "share"),
            [
                (k["name"][:60], k["calls"], f"{k['seconds'] * 1e3:.2f}", f"{k['share']:.1%}")
                for k in found["kernels"]
            ],
        ),
    ]
    return "\n".join([*lines, *([f"trace: {found['trace']}"] if found["trace"] else [])])


def limits_text(found: Value) -> str:
    """The floors on known GPUs."""
    rows = [
        (
            limit["gpu"],
            f"{limit['tokens_per_second']:,.0f}",
            f"{limit['micro_seconds'] * 1e3:,.1f}",
            f"{limit['update_seconds'] * 1e3:,.2f}",
            f"{limit['memory_share']:.1%}",
        )
        for limit in found["limits"]
    ]
    head = ("GPU", "tokens/s at 100 % MFU", "least ms of the FLOPs", "least ms of the update", "state/memory")
    return "\n".join(
        [
            _headline(found["workload"] | {"precision": "bf16"}, found["parameters"]),
            f"{found['flops_per_token']:.3e} FLOPs per token"
            + _if(found["recomputed_flops_per_token"], ", {:.3e} more recomputed")
            + f"; {found['update_bytes_per_parameter']} bytes per parameter and update",
            _table(head, rows),
            *_kernel_floors(found["kernels"]),
        ]
    )


def _kernel_floors(kernels: list[Value]) -> list[str]:
    """The floors of the family's own kernels, if it has any."""
    if not kernels:
        return []
    gpus = list(kernels[0]["floor_seconds"])
    rows = [
        (
            kernel["name"],
            str(kernel["runs"]),
            f"{kernel['flops'] / 1e9:,.1f}",
            f"{kernel['bytes'] / 1e6:,.1f}",
            *(f"{kernel['floor_seconds'][gpu] * 1e6:,.0f}" for gpu in gpus),
        )
        for kernel in kernels
    ]
    head = ("kernel, bf16", "runs", "GFLOP", "MB", *(f"{gpu} us" for gpu in gpus))
    return ["one run of each of its own kernels, and how many a micro-batch has:", _table(head, rows)]


def against_text(found: Value) -> str:
    """A comparison."""
    rows = [
        (
            name,
            f"{r['cpu_seconds'] * 1e3:,.1f}",
            f"{r['tokens_per_cpu_second']:,.0f}",
            f"{r['losses'][0]:.4f}",
        )
        for name, r in found["contenders"].items()
    ]
    lines = [
        _headline(found["workload"] | {"precision": "each its own"}, None),
        _table(("one thread, best update", "CPU ms", "tokens per CPU s", "first loss"), rows),
    ]
    for name, others in found["ratios"].items():
        lines.append(f"{name}: " + ", ".join(f"{ratio:.2f} x {other}" for other, ratio in others.items()))
    if not found["native_bf16"]:
        lines.append("this processor has no bf16 matrix products: bf16 contenders emulate them, slowly")
    return "\n".join(lines)


def _headline(w: Value, parameters: int | None) -> str:
    micro = "micro-batch" if w["accum"] == 1 else "micro-batches"
    counted = "" if parameters is None else f", {parameters:,} parameters"
    return (
        f"{w['model']}{counted}: {w['accum']} {micro} of {w['rows']} rows of {w['seq_len']:,} tokens, "
        f"recomputation {w['ac']}, precision {w['precision']}"
        + ("" if w["compile"] == "none" else f", {w['compile']} compiled")
        + (", in any order" if w["exactness"] == "fast" else "")
    )


def _utilisation(found: Value) -> str:
    if found["mfu"] is None:
        return f"no MFU: the peak of {found['device']} is not known"
    return f"MFU {found['mfu']:.1%}" + _if(found["hfu"], ", HFU {:.1%}")


def _if(value: float | None, text: str) -> str:
    return "" if value is None else text.format(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    )
