"""transformers' Trainer over a tiny LLaMA that is made in code.

Imports torch and transformers: import it inside ``run``.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from harness.bugs import api

VOCABULARY = 32

QUIET: dict[str, Any] = {
    "report_to": [],
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "max_grad_norm": 0.0,
}
"""Settings of any Trainer: it logs the loss of each step, and saves, shows and clips nothing."""


def llama() -> LlamaForCausalLM:
    """A LLaMA of two layers; its loss takes the number of items as a keyword."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attention_dropout=0.0,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(torch.float32)


def arguments(ctx: api.Context, folder: Path, **settings: Any) -> TrainingArguments:
    """The arguments of a quiet Trainer on this lane."""
    parameters = inspect.signature(TrainingArguments).parameters
    if "ddp_backend" not in parameters:  # before 4.29
        settings |= {"xpu_backend": ctx.lane.backend, "no_cuda": ctx.lane is api.Lane.CPU}
    elif ctx.world_size > 1:
        settings["ddp_backend"] = ctx.lane.backend
    if "use_cpu" in parameters:
        settings["use_cpu"] = ctx.lane is api.Lane.CPU  # before 4.34 it was no_cuda
    return TrainingArguments(
        output_dir=str(folder), seed=ctx.seed, remove_unused_columns=False, **QUIET, **settings
    )


def constant(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    """A schedule that leaves the rate as it is."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


def logged(trainer: Any) -> list[float]:
    """The losses that a Trainer has logged, one for each step."""
    return [float(line["loss"]) for line in trainer.state.log_history if "loss" in line]
