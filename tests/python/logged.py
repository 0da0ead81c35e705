"""Trains with a fault and two trackers: ``logged.py LIBRARY``, one of transformers, lightning and
accelerate. It prints JSON: the alarms that each tracker has then."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness import console_script

sys.modules["distributed_bugs"] = console_script  # as it is installed

STEPS = 12
LATE = 20
"""A micro-batch in which the training waits for the alarm: on a busy machine, the training would
end before guard has compared its first step."""


def transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Faulty(Trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *_: Any) -> Any:
            loss = model(**self._prepare_inputs(inputs)).loss
            loss.backward()  # never divided by the micro-batches
            wait(self.state.global_step * 2)
            return loss.detach()

    rows = [dict.fromkeys(("input_ids", "labels"), torch.randint(0, 50, (8,))) for _ in range(64)]
    sizes = {"vocab_size": 50, "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        "out",
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=["tensorboard", "wandb"],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    callbacks = [console_script.GuardCallback(every=1)]
    Faulty(GPT2LMHeadModel(config), arguments, train_dataset=rows, callbacks=callbacks).train()


def data() -> Any:
    rows = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    return torch.utils.data.DataLoader(rows, 2)


def lightning() -> None:
    import lightning
    from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

    class Faulty(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic_optimization = nn.Linear(8, 4), False

        def training_step(self, batch: Any, number: int) -> None:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.manual_backward(loss)  # never divided by the micro-batches
            self.log("loss", loss)
            wait(number)
            if number % 2:
                self.optimizers().step()
                self.optimizers().zero_grad()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    loggers = [TensorBoardLogger("out"), WandbLogger()]
    callbacks = [console_script.LightningGuardCallback(every=1)]
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=loggers,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(Faulty(), data())


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with=["tensorboard", "wandb"], project_dir="out")
    accelerator.init_trackers("runs")
    console_script.guard(every=1)
    net = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    net, optimizer, loader = accelerator.prepare(net, optimizer, data())
    for number, (rows, targets) in enumerate(loader):
        loss = nn.functional.cross_entropy(net(rows), targets)
        accelerator.backward(loss)  # never divided by the micro-batches
        accelerator.log({"loss": loss.item()}, step=number)
        wait(number)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()


def wait(micro_batch: int) -> None:
    """Wait for the alarm, for a minute: TensorBoard gets it first, and the other right after it."""
    end = time.monotonic() + 60
    while micro_batch == LATE and time.monotonic() < end and not alarms()["tensorboard"]:
        time.sleep(0.2)


def alarms() -> dict[str, list[str]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    texts = []
    for file in Path("out").rglob("events*"):
        events = EventAccumulator(str(file))
        events.Reload()
        for name in events.Tags()["tensors"]:
            if name.startswith("guard/"):
                texts += [e.tensor_proto.string_val[0].decode() for e in events.Tensors(name)]
    return {"tensorboard": texts, "wandb": alerts()}


def alerts() -> list[str]:
    """Those in the files of Weights & Biases: messages of protobuf with a title, a text and a
    level. These files have what the script prints, too."""
    files = [file.read_bytes() for file in Path("wandb").glob("offline-run-*/*.wandb")]
    alert = re.compile(rb"\n\x05guard\x12..(step .*?)\x1a\x04INFO", re.DOTALL)
    return [text.decode() for content in files for text in alert.findall(content)]


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    sys.modules["wandb"].finish()
    print(json.dumps(alarms()))
