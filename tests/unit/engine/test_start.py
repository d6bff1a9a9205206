"""What the first update of a process may cost."""

import subprocess
import sys

CODE = """
import sys
import numpy as np
from trainer_core.engine.backends.eager_replay import EagerReplay
from trainer_core.engine.flat import flat_state
from trainer_core.engine.step import Step, UpdateScalars
from trainer_core.models.registry import build

model = build("llama-nano-cpu", None, 64, 0)
step = Step(model_loss=model.loss, state=flat_state(model), backend=EagerReplay())
rows = np.zeros((2, 9), dtype=np.int64)
rows.flags.writeable = False
step.update([rows], UpdateScalars(lr=1e-3, weight_decay=0.1))
step.evaluate(rows)
sys.exit("torch._dynamo" in sys.modules or "pydantic" in sys.modules)
"""


def test_training_imports_neither_the_compiler_nor_pydantic_and_warns_of_nothing() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
