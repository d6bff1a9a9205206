"""The neuron's release and the two products around it."""

from trainer_core.kernels.release.reference import fired_reference as fired
from trainer_core.kernels.release.reference import norm_release_gate_reference as norm_release_gate
from trainer_core.kernels.release.reference import release_product_reference as release_product
from trainer_core.kernels.release.reference import release_reference as release

__all__ = ["fired", "norm_release_gate", "release", "release_product"]
