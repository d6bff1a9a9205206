"""FLOPs and bytes of the pool read's kernels, counted from shapes."""

from __future__ import annotations

from trainer_core.kernels.cost import Cost

NUMBER = 4
"""Bytes of what is one number per query or event: clocks, write tags, tokens, sums."""


def pool_read_cost(
    *, rows: int, queries: int, events: int, heads: int, key_heads: int, head_dim: int, element_bytes: int
) -> dict[str, Cost]:
    """Cost of each kernel by name; `element_bytes` is the size of an element of q, k and v.

    Products are counted for the events that a query may read, once: the backward pass makes the logits
    again in both of its kernels, and that is counted there.
    """
    pairs = rows * heads * (queries * (events - queries) + queries * (queries + 1) // 2)
    of_queries = rows * heads * queries * head_dim * element_bytes
    of_events = rows * key_heads * events * head_dim * element_bytes
    per_query, per_event = NUMBER * rows * heads * queries, NUMBER * rows * heads * events
    per_write = NUMBER * rows * key_heads * events
    tokens = NUMBER * rows * (queries + events)
    return {
        # Products: logits, read. Beside the logits' parts: match; out and log-sum-exp are written.
        "forward": Cost(
            flops=2 * 2.0 * head_dim * pairs,
            bytes=2.0 * of_queries + 2 * of_events + 2 * per_query + per_event + per_write + tokens,
        ),
        # Logits, slopes, dq. q, grad, out, dq; match, log-sum-exp, delta and the gradient of match.
        "queries": Cost(
            flops=3 * 2.0 * head_dim * pairs,
            bytes=4.0 * of_queries + 2 * of_events + 4 * per_query + per_event + per_write + tokens,
        ),
        # Logits, dv, slopes, dk. q, grad; k, v and their gradients; clocks, write tags and theirs.
        "events": Cost(
            flops=4 * 2.0 * head_dim * pairs,
            bytes=2.0 * of_queries + 4 * of_events + 3 * per_query + 2 * (per_event + per_write) + tokens,
        ),
    }
