"""A small FLUX of diffusers under DDP, with padded texts whose padding a mask hides."""

import argparse

import torch
import torch.distributed as dist
from diffusers import FluxTransformer2DModel
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
options = parser.parse_args()

TEXT, IMAGE, WIDTH, CHANNELS, ROWS = 6, 16, 32, 4, 144
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(options.seed)
model = FluxTransformer2DModel(
    patch_size=1,
    in_channels=CHANNELS,
    num_layers=1,
    num_single_layers=1,
    num_attention_heads=2,
    attention_head_dim=WIDTH // 2,
    joint_attention_dim=WIDTH,
    pooled_projection_dim=WIDTH,
    axes_dims_rope=[4, 4, 8],
)
if options.recompute:
    model.enable_gradient_checkpointing()
model.train()
ddp = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
noisy, target = torch.randn(ROWS, IMAGE, CHANNELS), torch.randn(ROWS, IMAGE, CHANNELS)
text, pooled, times = torch.randn(ROWS, TEXT, WIDTH), torch.randn(ROWS, WIDTH), torch.rand(ROWS)
mask = torch.ones(1, 1, 1, TEXT + IMAGE, dtype=torch.bool)
mask[..., TEXT // 2 : TEXT] = False
per_step = options.batch_size * options.accum * world
for step in range(ROWS // per_step):
    for micro in range(options.accum):
        start = step * per_step + (rank * options.accum + micro) * options.batch_size
        rows = slice(start, start + options.batch_size)
        output = ddp(
            hidden_states=noisy[rows],
            encoder_hidden_states=text[rows],
            pooled_projections=pooled[rows],
            timestep=times[rows],
            img_ids=torch.zeros(IMAGE, 3),
            txt_ids=torch.zeros(TEXT, 3),
            joint_attention_kwargs={"attention_mask": mask},
        )
        (nn.functional.mse_loss(output.sample, target[rows]) / options.accum).backward()
    optimizer.step()
    optimizer.zero_grad()
