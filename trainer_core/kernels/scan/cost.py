"""What a scan costs: bytes that must move and floating-point operations, by formula, of one call.

Bytes count every tensor of a kernel once: what the heads of a group share (b, r) comes from a cache after its
first read. Operations are those of matrix products; the rest is a few for each value moved.
"""

from __future__ import annotations

from trainer_core.kernels.cost import Cost
from trainer_core.kernels.scan.layout import Shape

FLOAT = 4
"""Bytes of steps, exponents and potentials."""

BACKWARD = ("state_backward", "state_pass_backward", "scan_backward", "reads_backward", "writes_backward")
"""The kernels of the backward pass alone."""


def shape(B: int, T: int, H: int, P: int, G: int, N: int, chunk: int) -> Shape:
    """Rows, tokens, heads, channels, groups, compartments, tokens of a chunk."""
    return Shape(B=B, T=T, H=H, P=P, G=G, N=N, Q=chunk)


def kernel_costs(s: Shape, element_size: int) -> dict[str, Cost]:
    """Of each launch of a pass forward and a pass backward on a GPU, in order.

    `element_size`: bytes of a value of u, b, r and y. "cumsum" runs once in each pass.
    """
    n = s.chunks * s.B * s.H
    by_pair, by_state = 2 * n * s.Q**2, 2 * n * s.Q * s.N * s.P
    u, shared = s.B * s.T * s.H * s.P * element_size, s.B * s.T * s.G * s.N * element_size
    lines, V = n * s.Q * FLOAT, n * s.N * s.P * FLOAT
    step, chunk = s.B * s.T * s.H * FLOAT, n * FLOAT
    partial = s.parts * s.B * s.T * s.G * s.N * FLOAT
    groups = Cost(
        flops=by_state + by_pair * s.P + s.parts * by_pair * s.N * s.G // s.H,
        bytes=2 * u + shared + 2 * lines + V + partial,
    )
    return {
        "cumsum": Cost(flops=0, bytes=step + 2 * lines),
        "state": Cost(flops=by_state, bytes=u + shared + 2 * lines + V),
        "state_pass": Cost(flops=0, bytes=2 * V),
        "scan": Cost(flops=by_state + by_pair * (s.N + s.P), bytes=2 * u + 2 * shared + 2 * lines + V),
        "state_backward": Cost(flops=by_state, bytes=u + shared + lines + V),
        "state_pass_backward": Cost(flops=0, bytes=3 * V + chunk),
        "scan_backward": Cost(
            flops=2 * by_state + by_pair * (s.N + 2 * s.P),
            bytes=3 * u + 2 * shared + 3 * lines + 2 * V + 2 * chunk,
        ),
        "reads_backward": groups,
        "writes_backward": groups,
    }


def totals(s: Shape, element_size: int) -> tuple[Cost, Cost]:
    """Of the whole pass forward and the whole pass backward on a GPU."""
    costs, nothing = kernel_costs(s, element_size), Cost(flops=0, bytes=0)
    forward = sum((cost for name, cost in costs.items() if name not in BACKWARD), nothing)
    return forward, sum((costs[name] for name in BACKWARD), costs["cumsum"])


def dense_flops(s: Shape) -> tuple[int, int]:
    """Of both passes on batched products, forward and backward, which make exponents by a product too."""
    n, m = s.chunks * s.B * s.H, s.chunks * s.B * s.G
    exponents = 2 * n * s.Q**2 * (s.Q + 2)
    by_state, by_pair, shared = 2 * n * s.Q * s.N * s.P, 2 * n * s.Q**2 * s.P, 2 * m * s.Q**2 * s.N
    forward = exponents + shared + 2 * by_state + by_pair
    return forward, 2 * exponents + 3 * shared + 4 * by_state + 2 * by_pair
