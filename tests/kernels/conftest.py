"""Two suites that exclude each other in one process: Triton decides at its import whether it interprets."""

import os

import torch

torch.set_num_threads(1)

collect_ignore = ["compiled" if os.environ.get("TRITON_INTERPRET") == "1" else "interpreted"]
