"""The neuron's nonlinearity: twin in `reference`, explicit backward passes in `op`."""

from trainer_core.kernels.release.op import fired, norm_release_gate, release, release_product

__all__ = ["fired", "norm_release_gate", "release", "release_product"]
