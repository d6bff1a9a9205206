"""FLOPs and bytes of the launches of a NeuronSpark's own kernels, for their floors on a GPU."""

from __future__ import annotations

from trainer_core.kernels.cost import Cost
from trainer_core.kernels.pool_read.cost import pool_read_cost
from trainer_core.kernels.scan.cost import kernel_costs as scan_costs
from trainer_core.kernels.scan.cost import shape
from trainer_core.kernels.scan.layout import kernel_chunk
from trainer_core.models.neuronspark.config import NeuronSparkConfig

ELEMENT_BYTES = 2
"""Of bfloat16."""


def kernel_costs(c: NeuronSparkConfig, rows: int, T: int) -> dict[str, tuple[int, Cost]]:
    """By name, how often a kernel runs in a micro-batch of `rows` rows of T tokens, and what one run costs.

    Without recomputation; the trace's scan is left out, it has one compartment.
    """
    scan = scan_costs(
        shape(
            rows,
            T,
            c.dendritic_heads,
            c.dendritic_width // c.dendritic_heads,
            c.synapse_groups,
            c.compartments,
            kernel_chunk(T),
        ),
        ELEMENT_BYTES,
    )
    pool = pool_read_cost(
        rows=rows,
        queries=T,
        events=T,
        heads=c.heads,
        key_heads=c.key_heads,
        head_dim=c.head_dim,
        element_bytes=ELEMENT_BYTES,
    )
    dendritic = c.layers - c.num_hippocampal
    twice = {"cumsum": 2}  # once in each pass
    found = {f"scan {name}": (dendritic * twice.get(name, 1), cost) for name, cost in scan.items()}
    return found | {f"pool read {name}": (c.num_hippocampal, cost) for name, cost in pool.items()}
