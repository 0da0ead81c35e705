"""A LightningModule and its Trainer with DDP or FSDP, as Lightning's documentation teaches them.

FSDP shards nothing. An epoch has 24 rows. A checkpoint is saved at an epoch's end, from where
Lightning can go on: within an epoch, its default loaders begin again. --manual is manual
optimization. --validate-every is a number of batches.
"""

import argparse
import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NAMES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
found = next(n for place in sys.path for n in NAMES if PathFinder.find_spec(n, [place]))
lightning = import_module(NAMES[found])  # of the same package, the one that comes first

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--rows", type=int, default=24, help="of an epoch")
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=1e-3, help="of AdamW")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--precision", default="32-true")
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
parser.add_argument("--manual", action="store_true")
parser.add_argument("--static-graph", action="store_true")
parser.add_argument("--fsdp", action="store_true", help="needs a GPU")
parser.add_argument("--validate-every", type=int, default=0)
parser.add_argument("--no-number", action="store_true", help="training_step has only the batch")
parser.add_argument("--ema", action="store_true", help="an average that begins later")
parser.add_argument("--quarters", action="store_true", help="of 48 rows, one in each epoch")
parser.add_argument("--unseeded", action="store_true", help="each rank seeds itself")
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
options = parser.parse_args()


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = not options.manual
        if not options.fsdp:
            self.layers = self.made()

    def made(self):
        dropout = nn.Dropout(0.0 if options.fsdp else 0.1)
        return nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), dropout, nn.LayerNorm(32), nn.Linear(32, 8)
        )

    def configure_model(self):
        if options.fsdp:  # which makes the weights in its own precision here
            self.layers = self.made()

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x), y)
        if options.manual:
            self.manual_backward(loss)
            self.optimizers().step()
            self.optimizers().zero_grad()
        return loss

    def trained_without_number(self, batch):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    if options.no_number:
        training_step = trained_without_number

    def validation_step(self, batch, number):
        self.layers(batch[0])

    def configure_optimizers(self):
        if options.optimizer == "sgd":
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        else:
            optimizer = torch.optim.AdamW(self.parameters(), lr=options.lr)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


generator = torch.Generator().manual_seed(0)
count = 48 if options.quarters else options.rows
inputs = torch.randn(count, 16, generator=generator)
data = TensorDataset(inputs, torch.randint(0, 8, (count,), generator=generator))
if options.unseeded:
    torch.manual_seed(options.seed + int(os.environ.get("LOCAL_RANK", 0)))
else:
    lightning.seed_everything(options.seed)


class Quarters(torch.utils.data.Sampler):
    """Every fourth row: in the next epoch, others."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(data) // 4

    def __iter__(self):
        return iter(range(self.epoch % 4, len(data), 4))


checkpoints = lightning.callbacks.ModelCheckpoint(
    dirpath=options.save or None, every_n_epochs=1, save_top_k=-1
)
strategies = lightning.strategies
strategy = strategies.DDPStrategy(static_graph=True) if options.static_graph else "ddp"
if options.fsdp:  # without shards, which probe cannot put together
    strategy = strategies.FSDPStrategy(sharding_strategy="NO_SHARD")
if options.quarters and options.devices == 1:
    strategy = "auto"  # DDP wraps the sampler on one rank, too
callbacks = [checkpoints] if options.save else []
if options.ema:
    callbacks.append(lightning.callbacks.EMAWeightAveraging(update_starting_at_step=50))
local = int(os.environ.get("LOCAL_WORLD_SIZE", options.devices))  # fewer, where ranks share a GPU
trainer = lightning.Trainer(
    accelerator="auto",
    strategy=strategy,
    devices=local,
    num_nodes=options.devices // local,
    precision=options.precision,
    accumulate_grad_batches=options.accum,
    gradient_clip_val=options.clip or None,
    val_check_interval=options.validate_every or None,
    limit_val_batches=1 if options.validate_every else 0,
    num_sanity_val_steps=0,
    max_epochs=4,
    callbacks=callbacks,
    enable_checkpointing=bool(options.save),
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
file = next(Path(options.resume).glob("epoch=0-*.ckpt")) if options.resume else None
order = {"sampler": Quarters()} if options.quarters else {"shuffle": True}
rows = DataLoader(data, options.batch_size, **order)
held_out = DataLoader(data, 4)
trainer.fit(Classifier(), rows, held_out, ckpt_path=file)
