"""Probes of a NeuronSpark: what its heads keep, write, read and fire on given rows, as numbers by name.

Files: `observe` runs the rows and puts the numbers together, `sums` the form in which they are gathered,
`tokens` what is known of a row; then one file for each subject: `retention`, `boundaries`, `firing`,
`memory` (trace, clock, write tag, copy, novelty, gain), `product_keys`, `rope_energy`, `attention`. A formula
stands in the docstring of the function that computes it.

Invariants: nothing is computed in training for probes; a number that is not defined on the rows (nothing at
a boundary where there is none) is left out, so no number is ever NaN or infinite.
"""

from trainer_core.models.neuronspark.probes.observe import probe

__all__ = ["probe"]
