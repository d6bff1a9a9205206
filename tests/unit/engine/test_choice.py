"""Which AdamW a device gets."""

import torch

from trainer_core.kernels import adamw


def test_the_fused_loop_serves_the_cpu_alone() -> None:
    assert adamw.has_fused_cpu()
    assert adamw.choose(torch.device("cpu")) is adamw.update_cpu
    assert adamw.choose(torch.device("meta")) is adamw.update_reference
    assert adamw.choose(torch.device("cuda")) is adamw.update_reference
