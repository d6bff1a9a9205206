"""The neuron's nonlinearity: twins in `reference`, arithmetic in `parts`, operators in the other files."""

from trainer_core.kernels.release.gate import norm_release_gate
from trainer_core.kernels.release.op import release
from trainer_core.kernels.release.product import release_product
from trainer_core.kernels.release.reference import fired_reference as fired

__all__ = ["fired", "norm_release_gate", "release", "release_product"]
