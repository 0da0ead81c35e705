"""DeepSpeed's pipeline parallelism, as its documentation teaches it: a stage on each rank.

--tied ties the embedding of the first stage to the head of the last.
"""

import argparse

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--stage", type=int, default=0, help="of ZeRO")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--replicas", type=int, default=1, help="of each stage")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--tied", action="store_true")
parser.add_argument("--norm", action="store_true", help="a layer norm in the tied module")
parser.add_argument("--weight-decay", type=float, default=0.1)
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
options = parser.parse_args()

VOCABULARY, LENGTH, WIDTH = 32, 8, 16
deepspeed.init_distributed("gloo")
stages = torch.distributed.get_world_size() // options.replicas
generator = torch.Generator().manual_seed(0)
ids = torch.randint(0, VOCABULARY, (144, LENGTH + 1), generator=generator)
data = torch.utils.data.TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.words.weight, std=0.1)
        self.norm = nn.LayerNorm(WIDTH) if options.norm else nn.Identity()

    @property
    def weight(self):
        return self.words.weight

    def forward(self, tokens):
        return self.norm(self.words(tokens))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def head(embedding, x):
    return nn.functional.linear(x, embedding.weight)


def loss(logits, labels):
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


blocks = [LayerSpec(Block) for _ in range(3)]
if options.tied:
    tied = {"key": "embed", "typename": Embedding, "tied_weight_attr": "weight"}
    layers = [TiedLayerSpec(**tied), *blocks, TiedLayerSpec(**tied, forward_fn=head)]
else:
    layers = [LayerSpec(Embedding), *blocks, LayerSpec(nn.Linear, WIDTH, VOCABULARY)]
model = PipelineModule(
    layers,
    topology=PipeModelDataParallelTopology(num_pp=stages, num_mp=1, num_dp=options.replicas),
    loss_fn=loss,
    partition_method="uniform",
    activation_checkpoint_interval=0,
    seed_layers=True,
    base_seed=options.seed + 1,
)
config = {
    "train_micro_batch_size_per_gpu": options.batch_size,
    "gradient_accumulation_steps": options.accum,
    "gradient_clipping": options.clip,
    "zero_optimization": {"stage": options.stage},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 1_000_000,
}
if options.bf16:
    config["bf16"] = {"enabled": True}
    config["zero_optimization"] = {"stage": 1}  # for BF16_Optimizer
    config["data_types"] = {"grad_accum_dtype": "fp32"}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=options.weight_decay)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
if options.replicas > 1:
    replica = engine.grid.get_data_parallel_rank()
    data = torch.utils.data.Subset(data, range(replica, len(data), options.replicas))
loader = torch.utils.data.DataLoader(data, options.batch_size)
batches = deepspeed.utils.RepeatingLoader(loader)
step = 0
if options.resume:
    _, client = engine.load_checkpoint(options.resume)
    step = client["step"]
    for _ in range(step * options.accum):
        next(batches)
while step < options.steps:
    engine.train_batch(batches)
    step += 1
    if options.save and step == options.save_at:
        engine.save_checkpoint(options.save, client_state={"step": step})
