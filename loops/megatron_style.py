"""DeepSpeed with Megatron's tensor parallelism: layers are split over the ranks, norms are copies.

The layers are those of Megatron's paper, with the mark that DeepSpeed looks for.
"""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
options = parser.parse_args()

VOCABULARY, LENGTH, WIDTH = 32, 8, 16
deepspeed.init_distributed("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
generator = torch.Generator().manual_seed(0)
ids = torch.randint(0, VOCABULARY, (144, LENGTH + 1), generator=generator)
data = torch.utils.data.TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        up, down = torch.randn(4 * WIDTH, WIDTH) * 0.1, torch.randn(WIDTH, 4 * WIDTH) * 0.1
        self.up = nn.Parameter(up.chunk(ranks)[rank].clone())
        self.down = nn.Parameter(down.chunk(ranks, 1)[rank].clone())
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        for part in (self.up, self.down):
            part.model_parallel = part.tensor_model_parallel = True

    def forward(self, x):
        hidden = nn.functional.gelu(nn.functional.linear(Copy.apply(self.norm(x)), self.up))
        return x + Reduce.apply(nn.functional.linear(hidden, self.down)) + self.bias


def loss(logits, labels):
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


torch.manual_seed(options.seed)
layers = [
    LayerSpec(nn.Embedding, VOCABULARY, WIDTH),
    *(LayerSpec(Block) for _ in range(2)),
    LayerSpec(nn.LayerNorm, WIDTH),
    LayerSpec(nn.Linear, WIDTH, VOCABULARY),
]
model = PipelineModule(
    layers,
    topology=PipeModelDataParallelTopology(num_pp=1, num_mp=ranks, num_dp=1),
    loss_fn=loss,
    activation_checkpoint_interval=0,
)
config = {
    "train_micro_batch_size_per_gpu": options.batch_size,
    "gradient_accumulation_steps": options.accum,
    "gradient_clipping": options.clip,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},  # with fp32 gradients this selects BF16_Optimizer
    "data_types": {"grad_accum_dtype": "fp32"},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 1_000_000,
}
if options.optimizer == "adamw":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
loader = torch.utils.data.DataLoader(data, options.batch_size)
batches = deepspeed.utils.RepeatingLoader(loader)
while True:
    engine.train_batch(batches)
