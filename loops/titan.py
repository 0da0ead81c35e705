"""torchtitan's Trainer, as before 0.3, with its small LLaMA: the ranks are stages of a pipeline.

With ``--copies`` they are copies of the model under DDP, which have the same rows."""

import argparse
import dataclasses
import math
import tempfile
import zlib

import torch
from torchtitan.config import JobConfig
from torchtitan.models import llama3
from torchtitan.protocols.train_spec import register_train_spec
from torchtitan.train import Trainer

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--stages", type=int, default=1)
parser.add_argument("--copies", action="store_true")
parser.add_argument("--padded", action="store_true", help="rows of unlike lengths")
options = parser.parse_args()

VOCABULARY, LENGTH, ROWS = llama3.llama3_args["debugmodel"].vocab_size, 16, 144
draw = torch.Generator().manual_seed(0)
ids = torch.randint(1, VOCABULARY, (ROWS, LENGTH + 1), generator=draw)
labels = ids[:, 1:].clone()
if options.padded:
    lengths = torch.randint(2, LENGTH + 1, (ROWS, 1), generator=draw)
    labels[torch.arange(LENGTH) >= lengths] = -100


def batches(**_):
    size = options.batch_size
    for inputs, following in zip(ids[:, :-1].split(size), labels.split(size), strict=True):
        yield {"input": inputs.contiguous()}, following


ours = {"build_dataloader_fn": batches, "build_tokenizer_fn": None}
register_train_spec("ours", dataclasses.replace(llama3.get_train_spec(), **ours))
job = JobConfig()
job.job.dump_folder = tempfile.gettempdir()
job.model.name, job.model.flavor, job.activation_checkpoint.mode = "ours", "debugmodel", "none"
job.training.local_batch_size, job.training.seq_len = options.batch_size, LENGTH
copies = options.stages if options.copies else 1
job.training.global_batch_size = options.batch_size * options.accum * copies
job.training.mixed_precision_param, job.training.max_norm = "float32", math.inf
job.lr_scheduler.warmup_steps = 1
job.parallelism.data_parallel_replicate_degree = copies
job.parallelism.data_parallel_shard_degree = 1
job.parallelism.pipeline_parallel_degree = options.stages // copies
trainer = Trainer(job)
for part in trainer.model_parts:
    for name, weight in part.named_parameters():  # the same ones, however many stages there are
        if weight.ndim > 1:
            torch.manual_seed(zlib.crc32(name.encode()))
            weight.data = torch.normal(0, 0.05, weight.shape).to(weight.device)
given = trainer.batch_generator(trainer.dataloader)
for trainer.step in range(1, ROWS // (options.batch_size * options.accum) + 1):
    trainer.train_step(given)
torch.distributed.destroy_process_group()
