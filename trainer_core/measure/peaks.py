"""What known GPUs can do at most, by the name that their driver reports. Imports no torch.

A GPU that is not in the table has no peak: nothing is then printed as a share of one. Parts of a GPU (MIG),
laptop versions and other variants have another peak under a similar name, so only whole names match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GpuPeaks:
    """Peak rates of one GPU, as its maker's datasheet states them."""

    name: str
    """Short name, as in tables."""
    bf16_flops: float
    """Dense bf16 matrix FLOP/s with fp32 accumulation, without sparsity."""
    bandwidth: float
    """Bytes per second between the chip and its memory."""
    memory: float
    """Memory in bytes, 1e9 for each GB of the datasheet; the device itself may report a little more."""


def known_gpu(name: str) -> GpuPeaks | None:
    """Peaks of the GPU that the driver calls `name` ("NVIDIA H200"), or None for one that is not known."""
    for pattern, peaks in _TABLE:
        if re.fullmatch(rf"(?:NVIDIA )?(?:{pattern})", name.strip()):
            return peaks
    return None


def by_short_name(name: str) -> GpuPeaks:
    """Peaks of a GPU by its short name in the table ("H200"); KeyError for another."""
    return {peaks.name: peaks for _, peaks in _TABLE}[name]


def _gpu(name: str, teraflops: float, terabytes_per_s: float, gigabytes: float) -> GpuPeaks:
    return GpuPeaks(
        name=name, bf16_flops=teraflops * 1e12, bandwidth=terabytes_per_s * 1e12, memory=gigabytes * 1e9
    )


_TABLE: tuple[tuple[str, GpuPeaks], ...] = (
    # NVIDIA A100 datasheet: 312 dense, 624 with sparsity; bandwidth by version.
    (r"A100-SXM4-40GB|A100-PCIE-40GB", _gpu("A100-40GB", 312, 1.555, 40)),
    (r"A100-SXM4-80GB", _gpu("A100", 312, 2.039, 80)),
    (r"A100 80GB PCIe", _gpu("A100-PCIe", 312, 1.935, 80)),
    # NVIDIA H100 datasheet: 1,979 (SXM), 1,513 (PCIe) and 1,671 (NVL) with sparsity; dense is half.
    (r"H100 80GB HBM3", _gpu("H100", 989.4, 3.35, 80)),
    (r"H100 PCIe", _gpu("H100-PCIe", 756.5, 2.0, 80)),
    (r"H100 NVL", _gpu("H100-NVL", 835.5, 3.9, 94)),
    # NVIDIA H200 datasheet: 1,979 (SXM) and 1,671 (NVL) with sparsity, 4.8 TB/s.
    (r"H200", _gpu("H200", 989.4, 4.8, 141)),
    (r"H200 NVL", _gpu("H200-NVL", 835.5, 4.8, 141)),
    # NVIDIA GH200 datasheet: 1,979 with sparsity; 96 GB at 4 TB/s, or 144 GB at 4.9 TB/s.
    (r"GH200 480GB", _gpu("GH200", 989.4, 4.0, 96)),
    (r"GH200 144G HBM3e", _gpu("GH200-144GB", 989.4, 4.9, 144)),
    # NVIDIA HGX datasheets: eight B200, or eight B300, 36 PFLOP/s with sparsity; dense is half.
    (r"B200", _gpu("B200", 2_250, 8.0, 180)),
    (r"B300(?: SXM6(?: AC)?)?", _gpu("B300", 2_250, 8.0, 288)),
    # NVIDIA GB200 and GB300 NVL72 datasheets: 360 PFLOP/s with sparsity for 72; dense is half.
    (r"GB200", _gpu("GB200", 2_500, 8.0, 186)),
    (r"GB300", _gpu("GB300", 2_500, 8.0, 288)),
    # NVIDIA L40S, L40 and L4 datasheets: 362, 181 and 121 dense.
    (r"L40S", _gpu("L40S", 362.05, 0.864, 48)),
    (r"L40", _gpu("L40", 181.05, 0.864, 48)),
    (r"L4", _gpu("L4", 121, 0.3, 24)),
    # NVIDIA A10 datasheet: 125 dense.
    (r"A10", _gpu("A10", 125, 0.6, 24)),
    # NVIDIA architecture whitepapers (GA102, AD102, Blackwell): dense bf16 with fp32 accumulation.
    (r"GeForce RTX 3090", _gpu("RTX-3090", 71, 0.936, 24)),
    (r"RTX A6000", _gpu("RTX-A6000", 154.8, 0.768, 48)),
    (r"GeForce RTX 4090", _gpu("RTX-4090", 165.2, 1.008, 24)),
    (r"RTX 6000 Ada Generation", _gpu("RTX-6000-Ada", 364.2, 0.96, 48)),
    (r"GeForce RTX 5090", _gpu("RTX-5090", 209.5, 1.792, 32)),
)
"""Names as the driver reports them (without "NVIDIA", a pattern) and the peaks."""
