"""No family calls an operator on a GPU that torch's deterministic mode refuses there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer_core.kernels.register import composed_kernel
from trainer_core.kernels.target import traced_for
from trainer_core.models.registry import build

REFUSED = {
    *("avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"),
    *("adaptive_max_pool2d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
    *("max_unpool2d", "max_unpool3d", "grid_sampler_2d_backward", "grid_sampler_3d_backward"),
    *("upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward"),
    *("upsample_trilinear3d_backward", "reflection_pad1d_backward", "reflection_pad2d_backward"),
    *("reflection_pad3d_backward", "nll_loss2d_forward", "_ctc_loss_backward", "put_", "histc", "bincount"),
    *("median", "nanmedian", "kthvalue", "cumsum", "cumsum_", "scatter_reduce", "scatter_reduce_"),
    *("_embedding_bag_dense_backward", "_scaled_dot_product_efficient_attention_backward"),
}
"""Names in aten, from the documentation of torch.use_deterministic_algorithms; integers may be summed."""

SLOW = {
    "scatter_add",
    "scatter_add_",
    "index_add",
    "index_add_",
    "index_put",
    "index_put_",
    "embedding_dense_backward",
}
"""What the mode replaces by something with a fixed order that sorts, or that walks the indices one by one."""


class Watched(TorchDispatchMode):
    """Names of the operators in aten that a trace meets, also inside of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kernel = composed_kernel(func, args, kwargs or {})
        if kernel is not None:
            with self:
                return kernel(*args, **kwargs or {})
        floating = any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args)
        if floating:
            self.names.add(func._schema.name.removeprefix("aten::"))
        return func(*args, **kwargs or {})


def _names(preset: str, device: str) -> set[str]:
    with torch.device("meta"):
        model = build(preset, None, 64, 0)
    model.to(torch.bfloat16)
    model.dropout_counter = torch.zeros(3, dtype=torch.int64, device="meta")
    ids = torch.zeros(2, 64, dtype=torch.int64, device="meta")
    with traced_for(device), Watched() as seen:
        model.loss(ids, ids)[0].backward()
    return seen.names


@pytest.mark.parametrize("preset", ["llama-cpu", "gpt2-cpu", "nano-cpu"])
def test_none_is_refused(preset: str) -> None:
    names = _names(preset, "cuda")
    assert "mm" in names and not names & (REFUSED | SLOW)


def test_the_watch_looks_inside_our_operators() -> None:
    assert "scatter_add_" in _names("llama-cpu", "cpu")


def test_a_llama_moves_no_heads_on_a_gpu() -> None:
    """From the projections through rotation and attention and back, no tensor is copied to lie otherwise."""
    assert not _names("llama-cpu", "cuda") & {"clone", "copy_", "contiguous"}
    assert "clone" in _names("llama-cpu", "cpu")
