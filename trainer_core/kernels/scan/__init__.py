"""The selective scan: sequential twin in `reference`, chunks in `chunked`, operator in `op`."""

from trainer_core.kernels.scan.op import scan

__all__ = ["scan"]
