"""The release and its products on a GPU: one pass forward, one pass backward, everything else computed again.

Rows lie in strips, one strip a program: it keeps its sums over rows, of gains and thresholds, in registers
and writes them once; the sum over strips follows, so that every order is fixed. float32 inside.
"""

from __future__ import annotations

import triton.language as tl

from trainer_core.kernels.compiler import kernel
from trainer_core.kernels.release.reference import SHARPNESS
from trainer_core.kernels.rounding import as_stored

STRIPS = 512
"""Strips of rows at most: few enough that their sums are small beside the rows."""

ELEMENTS = 4096
"""Elements of a tile, rows times columns, both powers of two."""

COLUMNS = 1024
"""Columns of a tile at most where a row may be cut."""

WARPS = 8
"""Warps of every program."""

STEEPEST = tl.constexpr(SHARPNESS)


@kernel()
def _value(x: tl.tensor, t: tl.tensor, TWO_SIDED: tl.constexpr, BINARY: tl.constexpr) -> tl.tensor:
    """What is released at x over t >= 0; what is not a number stays so."""
    if BINARY:
        value = tl.where(x > t, 1.0 + t, 0.0)
        if TWO_SIDED:
            value = tl.where(x < -t, -1.0 - t, value)
        value = tl.where(x == x, value, x)
    else:
        value = tl.where(x <= t, 0.0, x - t)
        if TWO_SIDED:
            value = tl.where(x < -t, x + t, value)
    return value


@kernel()
def _slope(y: tl.tensor, t: tl.tensor) -> tl.tensor:
    """1 + t times the derivative of the surrogate of a step at y = 0."""
    a = STEEPEST / tl.where(t > 1.0, t, 1.0)
    s = tl.sigmoid(a * y)
    return (1.0 + t) * a * s * (1.0 - s)


@kernel()
def _pulls(
    grad: tl.tensor, x: tl.tensor, t: tl.tensor, TWO_SIDED: tl.constexpr, BINARY: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Gradients of x and t, element by element."""
    on = tl.where(x > t, 1.0, 0.0)
    if BINARY:
        slope = _slope(x - t, t)
        d_x = slope
        d_t = on - slope
        if TWO_SIDED:
            other = _slope(-x - t, t)
            d_x += other
            d_t += other - tl.where(x < -t, 1.0, 0.0)
    else:
        d_x = on
        d_t = -on
        if TWO_SIDED:
            off = tl.where(x < -t, 1.0, 0.0)
            d_x += off
            d_t += off
    return grad * d_x, grad * d_t


@kernel()
def _read(pointer: tl.tensor, at: tl.tensor, mask: tl.tensor) -> tl.tensor:
    return tl.load(pointer + at, mask=mask, other=0.0).to(tl.float32)


@kernel(any_value=("n",))
def release_kernel(
    x: tl.tensor,
    theta: tl.tensor,
    u: tl.tensor,
    theta_u: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    C: tl.tensor,
    x_stride: tl.tensor,
    u_stride: tl.tensor,
    TWO_SIDED: tl.constexpr,
    BINARY: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Release of x, times that of u where there is one."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (row < n) & (column < C)
    t = tl.abs(_read(theta, column, column < C))
    value = _value(_read(x, row * x_stride + column, mask), t, TWO_SIDED, BINARY)
    if u is not None:
        t_u = tl.abs(_read(theta_u, column, column < C))
        value *= _value(_read(u, row * u_stride + column, mask), t_u, TWO_SIDED, BINARY)
    tl.store(out + row * C + column, as_stored(value, out), mask=mask)


@kernel(any_value=("n", "per_strip"))
def release_backward_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    theta: tl.tensor,
    u: tl.tensor,
    theta_u: tl.tensor,
    d_x: tl.tensor,
    d_u: tl.tensor,
    sums: tl.tensor,
    sums_u: tl.tensor,
    n: tl.tensor,
    C: tl.tensor,
    x_stride: tl.tensor,
    u_stride: tl.tensor,
    per_strip: tl.tensor,
    TWO_SIDED: tl.constexpr,
    BINARY: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`sums` and `sums_u` [strips, C] get the gradients of |theta|."""
    strip = tl.program_id(0)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    t = tl.abs(_read(theta, column, column < C))
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    if u is not None:
        t_u = tl.abs(_read(theta_u, column, column < C))
        total_u = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(strip * per_strip, (strip + 1) * per_strip, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        mask = (row < n) & (column < C)
        at = row * C + column
        pull = _read(grad, at, mask)
        value_x = _read(x, row * x_stride + column, mask)
        pull_x = pull
        if u is not None:
            value_u = _read(u, row * u_stride + column, mask)
            pull_x = pull * _value(value_u, t_u, TWO_SIDED, BINARY)
            pull_u = pull * _value(value_x, t, TWO_SIDED, BINARY)
            to_u, to_t_u = _pulls(pull_u, value_u, t_u, TWO_SIDED, BINARY)
            total_u += to_t_u
            tl.store(d_u + at, as_stored(to_u, d_u), mask=mask)
        to_x, to_t = _pulls(pull_x, value_x, t, TWO_SIDED, BINARY)
        total += to_t
        tl.store(d_x + at, as_stored(to_x, d_x), mask=mask)
    ends = strip.to(tl.int64) * C + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    last = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK) < C
    tl.store(sums + ends, tl.sum(total, 0), mask=last)
    if u is not None:
        tl.store(sums_u + ends, tl.sum(total_u, 0), mask=last)


@kernel(any_value=("n", "eps"))
def gate_kernel(
    s: tl.tensor,
    gain: tl.tensor,
    theta: tl.tensor,
    z: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    n: tl.tensor,
    C: tl.tensor,
    s_stride: tl.tensor,
    z_stride: tl.tensor,
    eps: tl.tensor,
    BINARY: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Whole rows: norm, release and gate."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row, column = rows[:, None], tl.arange(0, BLOCK)[None, :]
    mask = (row < n) & (column < C)
    x = _read(s, row * s_stride + column, mask)
    scale = tl.rsqrt(tl.sum(x * x, 1) / C + eps)
    tl.store(scales + rows, scale, mask=rows < n)
    normed = x * scale[:, None] * _read(gain, column, column < C)
    value = _value(normed, tl.abs(_read(theta, column, column < C)), False, BINARY)
    gate = _read(z, row * z_stride + column, mask)
    tl.store(out + row * C + column, as_stored(value * (gate * tl.sigmoid(gate)), out), mask=mask)


@kernel(any_value=("n", "per_strip"))
def gate_backward_kernel(
    grad: tl.tensor,
    s: tl.tensor,
    gain: tl.tensor,
    theta: tl.tensor,
    z: tl.tensor,
    scales: tl.tensor,
    d_s: tl.tensor,
    d_z: tl.tensor,
    sums_gain: tl.tensor,
    sums_t: tl.tensor,
    n: tl.tensor,
    C: tl.tensor,
    s_stride: tl.tensor,
    z_stride: tl.tensor,
    per_strip: tl.tensor,
    BINARY: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """`sums_gain` and `sums_t` [strips, C] get the gradients of gain and |theta|."""
    strip = tl.program_id(0)
    column = tl.arange(0, BLOCK)[None, :]
    g = _read(gain, column, column < C)
    t = tl.abs(_read(theta, column, column < C))
    total_gain = tl.zeros([ROWS, BLOCK], tl.float32)
    total_t = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(strip * per_strip, (strip + 1) * per_strip, ROWS):
        rows = (start + tl.arange(0, ROWS)).to(tl.int64)
        row = rows[:, None]
        mask = (row < n) & (column < C)
        at = row * C + column
        pull = _read(grad, at, mask)
        gate = _read(z, row * z_stride + column, mask)
        scale = tl.load(scales + rows, mask=rows < n, other=0.0)[:, None]
        normed = _read(s, row * s_stride + column, mask) * scale
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        to_z = pull * _value(normed * g, t, False, BINARY) * (sigmoid + silu * (1.0 - sigmoid))
        tl.store(d_z + at, as_stored(to_z, d_z), mask=mask)
        to_normed, to_t = _pulls(pull * silu, normed * g, t, False, BINARY)
        total_t += to_t
        total_gain += to_normed * normed
        to_normed *= g
        along = tl.sum(to_normed * normed, 1)[:, None] / C
        tl.store(d_s + at, as_stored((to_normed - normed * along) * scale, d_s), mask=mask)
    ends = strip.to(tl.int64) * C + tl.arange(0, BLOCK)
    last = tl.arange(0, BLOCK) < C
    tl.store(sums_gain + ends, tl.sum(total_gain, 0), mask=last)
    tl.store(sums_t + ends, tl.sum(total_t, 0), mask=last)
