"""One thread: sums have one order, and the tests do not fight over the cores."""

import torch

torch.set_num_threads(1)
