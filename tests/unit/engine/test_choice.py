"""Which update and which norm a device gets."""

import torch

from trainer_core.kernels import adamw
from trainer_core.kernels.adamw.triton import update_triton


def test_the_fused_loop_serves_the_cpu_alone() -> None:
    assert adamw.has_fused_cpu()
    assert adamw.choose(torch.device("cpu")) is adamw.update_cpu
    assert adamw.choose(torch.device("meta")) is adamw.update_reference
    assert adamw.choose(torch.device("cuda")) is update_triton
