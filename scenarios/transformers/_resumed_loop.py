"""transformers' Trainer over numbered rows of different lengths: which rows each step is given.

Imports torch and transformers: import it inside ``run``.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer, TrainerCallback, TrainingArguments

from harness.bugs import api
from scenarios.common.hf_trainer import arguments, llama

BATCH = 4
"""Rows of a step."""


def rows(count: int, seed: int) -> list[dict[str, Tensor]]:
    """Rows of 2 to 8 tokens [length]. All tokens of a row are its number, which ``given`` reads."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (count,), generator=generator).tolist()
    tokens = [torch.full((length,), number) for number, length in enumerate(lengths)]
    return [{"input_ids": row, "labels": row} for row in tokens]


def collate(batch: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch [rows, longest], padded with the last token."""
    return {name: pad_sequence([row[name] for row in batch], batch_first=True) for name in batch[0]}


class Seen(Trainer):  # type: ignore[misc]
    """Notes the numbers of the rows of each step."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.given: list[list[int]] = []

    def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
        self.given.append(inputs["input_ids"][:, 0].tolist())
        return super().training_step(model, inputs, *more)


class Stop(TrainerCallback):  # type: ignore[misc]
    """Saves a checkpoint after a step, and stops."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def trained(ctx: api.Context, grouped: bool) -> list[list[int]]:
    """The numbers of the rows of each step of a launch: ``whole``, ``save`` or ``resume``.

    ``grouped`` says whether rows of similar lengths share a batch.
    """
    params, launch = ctx.params, ctx.launch
    folder = ctx.folder / ("whole" if launch == "whole" else "stopped")
    parameters = inspect.signature(TrainingArguments).parameters
    grouping: dict[str, Any] = {}
    if grouped and "group_by_length" in parameters:
        grouping["group_by_length"] = True
    elif grouped:
        grouping["train_sampling_strategy"] = "group_by_length"
    torch.manual_seed(ctx.seed)
    trainer = Seen(
        llama().to(ctx.device),
        arguments(
            ctx,
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=params.epochs,
            **grouping,
        ),
        train_dataset=rows(params.rows, ctx.seed),
        data_collator=collate,
        callbacks=[Stop(params.stop)] if launch == "save" else [],
    )
    checkpoint = str(folder / f"checkpoint-{params.stop}") if launch == "resume" else None
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer.given
