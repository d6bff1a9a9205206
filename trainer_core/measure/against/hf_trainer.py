"""The Trainer of transformers, with its documented fastest settings on a CPU, asked for one update at a time.

Its training loop is its own: it runs in a thread that waits at the beginning of each step until it is asked
for. Only one of all contenders works at a time, so the process's CPU seconds are its own.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer_core.errors import Refused
from trainer_core.measure.against.contender import Batches
from trainer_core.measure.throughput import SCALARS, Workload
from trainer_core.models.llama import Llama

NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "attention_norm": "input_layernorm",
    "attention.out_proj": "self_attn.o_proj",
    "attention.q_proj": "self_attn.q_proj",
    "attention.k_proj": "self_attn.k_proj",
    "attention.v_proj": "self_attn.v_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate_proj": "mlp.gate_proj",
    "ffn.up_proj": "mlp.up_proj",
    "ffn.down_proj": "mlp.down_proj",
}
"""Our names and theirs: of whole parameters, else of modules in a block."""


class _Closed(Exception):
    """Ends the thread's training."""


def their_weights(ours: Llama) -> dict[str, Tensor]:
    """Our parameters under the names of LlamaForCausalLM; both rotate by halves."""
    named = {}
    for name, param in ours.named_parameters():
        if name.startswith("blocks."):
            _, index, *module, leaf = name.split(".")
            theirs = f"model.layers.{index}.{NAMES['.'.join(module)]}.{leaf}"
        else:
            theirs = NAMES[name]
        named[theirs] = param.detach()
    return named


def their_model(ours: Llama) -> Any:
    """A LlamaForCausalLM that computes what `ours` does. Raises Refused without transformers."""
    transformers = _transformers()
    c = ours.config
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=ours.vocab_size,
            hidden_size=c.width,
            intermediate_size=c.ffn,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            max_position_embeddings=c.rope_max_seq_len,
            rms_norm_eps=c.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
            tie_word_embeddings=True,
            use_cache=False,
        )
    )
    missing, unexpected = model.load_state_dict(their_weights(ours), strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)  # the tied head
    return model


class _Rows(torch.utils.data.Dataset[Mapping[str, Tensor]]):
    """Rows in the order of training. Targets are shifted already, as ours are."""

    def __init__(self, batches: Batches) -> None:
        self._rows = [row for micro in batches for rows in micro for row in rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        ids, targets = self._rows[index][:-1], self._rows[index][1:]
        return {"input_ids": ids, "labels": targets, "shift_labels": targets}


class HfTrainer:
    """Trainer in fp32, or in bf16 by autocast; the fused AdamW in both."""

    def __init__(self, workload: Workload, batches: Batches, *, bf16: bool) -> None:
        ours = workload.build()
        assert isinstance(ours, Llama), type(ours)
        self._folder = tempfile.TemporaryDirectory(prefix="nstrain-bench-")
        self._asked, self._waits = threading.Event(), threading.Event()
        self._threads = torch.get_num_threads()
        self._closing = False
        self._error: Exception | None = None
        self._loss = 0.0
        self._trainer = self._make(ours, workload, batches, bf16)
        self._thread = threading.Thread(target=self._run, name="hf-trainer", daemon=True)
        self._thread.start()
        self._pause()

    def update(self) -> float:
        self._loss = 0.0
        self._asked.set()
        self._pause()
        return self._loss

    def close(self) -> None:
        self._closing = True
        self._asked.set()
        self._thread.join()
        self._folder.cleanup()

    def _pause(self) -> None:
        """Until the thread waits at the next step or has ended."""
        self._waits.wait()
        self._waits.clear()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP's number is the thread's own
        try:
            self._trainer.train()
        except _Closed:
            pass
        except Exception as error:
            self._error = error
        self._waits.set()

    def _on_step_begin(self) -> None:
        self._waits.set()
        self._asked.wait()
        self._asked.clear()
        if self._closing:
            raise _Closed

    def _add_loss(self, loss: Tensor) -> None:
        self._loss += float(loss)

    def _make(self, ours: Llama, workload: Workload, batches: Batches, bf16: bool) -> Any:
        transformers = _transformers()
        outer, s = self, SCALARS

        class Told(transformers.Trainer):  # type: ignore[misc, name-defined]
            """Tells the loss of each micro-batch."""

            def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
                loss: Tensor = super().training_step(*args, **kwargs)
                outer._add_loss(loss)
                return loss

        class Waits(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
            """Waits at the beginning of each step."""

            def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
                outer._on_step_begin()

        arguments = transformers.TrainingArguments(
            output_dir=self._folder.name,
            use_cpu=True,
            bf16=bf16,
            optim="adamw_torch_fused",
            per_device_train_batch_size=workload.rows,
            gradient_accumulation_steps=workload.accum,
            gradient_checkpointing=workload.ac == "full",
            max_steps=len(batches),
            learning_rate=s.lr,
            lr_scheduler_type="constant",
            weight_decay=s.weight_decay,
            adam_beta1=s.beta1,
            adam_beta2=s.beta2,
            adam_epsilon=s.eps,
            max_grad_norm=s.clip,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Told(
            model=their_model(ours), args=arguments, train_dataset=_Rows(batches), callbacks=[Waits()]
        )
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer


def _transformers() -> Any:
    try:
        importlib.import_module("accelerate")
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise Refused(
            f"--against hf-trainer: {error.name} is not installed; `pip install 'nstrain[bench]'` installs it"
        ) from None
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"transformers\.|accelerate\.")
    return transformers
