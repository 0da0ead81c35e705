"""Train a LLaMA on 4 rows with torchtitan's Trainer, in 1 and in 2 micro-batches: equal gradients?

Needs torch and torchtitan from 0.2 to 0.2.2, and a GPU. Exit code 3: the bug."""

import dataclasses
import os
from importlib.metadata import version

import torch
from torchtitan.config import JobConfig
from torchtitan.models import llama3
from torchtitan.protocols.train_spec import register_train_spec
from torchtitan.train import Trainer


def rank(_: int, parts: int, norms: torch.Tensor) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29671"}
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **where}
    tokens, labels = torch.arange(64).view(4, 16), torch.arange(64).view(4, 16)
    labels[2:, :12] = -100  # the last rows have few labels
    cut = zip(({"input": part} for part in tokens.chunk(parts)), labels.chunk(parts), strict=True)
    job, ours = JobConfig(), {"build_tokenizer_fn": None, "build_dataloader_fn": lambda **_: cut}
    register_train_spec("mine", dataclasses.replace(llama3.get_train_spec(), **ours))
    job.model.name, job.model.flavor, job.activation_checkpoint.mode = "mine", "debugmodel", "none"
    job.training.local_batch_size, job.training.seq_len, job.training.max_norm = 4 // parts, 16, 1e9
    job.training.global_batch_size, job.training.mixed_precision_param = 4, "float32"
    trainer = Trainer(job)
    for each in trainer.model_parts[0].parameters():
        each.data = torch.linspace(-0.1, 0.1, each.numel()).view_as(each).to(each.device)
    trainer.train_step(trainer.batch_generator(cut))
    norms[parts - 1] = trainer.model_parts[0].output.weight.grad.norm()


if __name__ == "__main__":
    norms = torch.zeros(2).share_memory_()
    [torch.multiprocessing.spawn(rank, (parts, norms)) for parts in (1, 2)]
    has_bug = bool(abs(norms[1] / norms[0] - 1) > 0.001)
    print("torchtitan", version("torchtitan"), "has gradients of the norms", norms.tolist())
    print("WRONG: they depend on the micro-batches" if has_bug else "right: they are equal")
    raise SystemExit(3 if has_bug else 0)
