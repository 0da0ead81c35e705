"""mmengine's Runner with an IterBasedTrainLoop and DDP, as its documentation teaches it."""

import argparse

import torch
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.runner import Runner
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
options = parser.parse_args()

torch.distributed.init_process_group("gloo")
torch.manual_seed(options.seed)
generator = torch.Generator().manual_seed(0)
inputs, labels = torch.randn(144, 16, generator=generator), torch.arange(144) % 8


class Classifier(BaseModel):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, inputs, labels, mode="loss"):
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


saving = {"type": "CheckpointHook", "interval": options.save_at * options.accum, "by_epoch": False}
runner = Runner(
    MMDistributedDataParallel(Classifier()),
    work_dir=options.save or options.resume or "work",
    train_dataloader={
        "batch_size": options.batch_size,
        "num_workers": 0,
        "collate_fn": {"type": "default_collate"},
        "dataset": [{"inputs": x, "labels": int(y)} for x, y in zip(inputs, labels, strict=True)],
        "sampler": {"type": "DefaultSampler", "shuffle": True, "seed": options.seed},
    },
    train_cfg={"by_epoch": False, "max_iters": 12 * options.accum},
    optim_wrapper={
        "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
        "accumulative_counts": options.accum,
    },
    default_hooks={"checkpoint": saving if options.save else None},
    resume=bool(options.resume),
    launcher="pytorch",
    randomness={"seed": options.seed},
    experiment_name="loop",
    log_level="ERROR",
)
runner.train()
