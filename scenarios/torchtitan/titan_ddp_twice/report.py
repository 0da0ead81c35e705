"""Train a LLaMA on 4 rows with torchtitan's Trainer, on 1 rank and on 2 with DDP: equal gradients?

Needs torch, torchtitan from 0.2 to 0.2.2, and 2 GPUs. Exit code 3: the bug."""

import dataclasses
import os
from importlib.metadata import version

import torch
from torchtitan.config import JobConfig
from torchtitan.models import llama3
from torchtitan.protocols.train_spec import register_train_spec
from torchtitan.train import Trainer


def rank(number: int, ranks: int, norms: torch.Tensor) -> None:
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29672"}
    tokens = torch.arange(64).view(4, 16).chunk(ranks)[number]
    job, rows = JobConfig(), [({"input": tokens}, tokens)]
    ours = {"build_dataloader_fn": lambda **_: rows, "build_tokenizer_fn": None}
    register_train_spec("mine", dataclasses.replace(llama3.get_train_spec(), **ours))
    job.model.name, job.model.flavor, job.activation_checkpoint.mode = "mine", "debugmodel", "none"
    job.training.local_batch_size, job.training.seq_len = len(tokens), 16
    job.training.max_norm, job.training.mixed_precision_param = 1e9, "float32"
    job.parallelism.data_parallel_replicate_degree = ranks  # the shard degree becomes 1
    trainer = Trainer(job)
    for weight in trainer.model_parts[0].parameters():
        weight.data = torch.linspace(-0.1, 0.1, weight.numel()).view_as(weight).to(weight.device)
    trainer.train_step(trainer.batch_generator(rows))
    norms[ranks - 1] = trainer.model_parts[0].output.weight.grad.norm()


if __name__ == "__main__":
    norms = torch.zeros(2).share_memory_()
    [torch.multiprocessing.spawn(rank, (n, norms), n) for n in (1, 2)]
    times = float(norms[1] / norms[0])
    print(f"torchtitan {version('torchtitan')}: on 2 ranks {times:.3f} times as long")
    print("WRONG: divided by 2 ranks twice" if times < 0.9 else "right: it is the same")
    raise SystemExit(3 if times < 0.9 else 0)
