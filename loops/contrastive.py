"""Losses and modules that use the rows of all ranks, under DDP, as their packages teach them.

--loss: ``clip`` (open_clip), ``barlow`` and ``sigreg`` (lightly), ``ntxent`` (pytorch-metric-
learning), ``codebook`` (vector-quantize-pytorch). The micro-batches of a step cannot be compared.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
losses = ("pairs", "clip", "barlow", "sigreg", "einsum", "ntxent", "codebook")
parser.add_argument("--loss", choices=losses, default="pairs", help="pairs: of one rank's rows")
parser.add_argument("--local", action="store_true", help="clip: of a rank's own rows")
parser.add_argument("--efficient", action="store_true", help="ntxent: of a rank's own rows")
parser.add_argument("--seed", type=int, default=0, help="of a sampler without duplicates")
parser.add_argument("--no-duplicates", action="store_true", help="of sentence-transformers")
options = parser.parse_args()

FEATURES = 3
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


def balanced(count):
    """Rows of which each rank has six with the mean 0 and the covariance of all, as the loss of
    Barlow Twins normalises the rows of a rank."""
    parts = [torch.linalg.qr(torch.randn(FEATURES, FEATURES))[0] for _ in range(count // 6)]
    six = torch.stack([torch.cat([part, -part]) for part in parts])
    return six.unflatten(0, (-1, 2)).transpose(1, 2).flatten(0, 2)


views = torch.stack([balanced(144) for _ in range(2)], 1)  # [row, view, feature]
data = TensorDataset(views, torch.arange(len(views)))


class Quantized(nn.Module):
    """A linear map whose outputs are codes of a codebook."""

    def __init__(self):
        super().__init__()
        from vector_quantize_pytorch import VectorQuantize

        self.linear = nn.Linear(FEATURES, 4)
        self.codes = VectorQuantize(dim=4, codebook_size=8)

    def forward(self, x):
        output = self.linear(x)
        quantized, _, commitment = self.codes(output)
        return (quantized - 1).square().mean() + 0.25 * commitment.sum()


def loss_function():
    """The loss of the outputs of both views and of the numbers of their rows."""
    if options.loss == "pairs":
        return lambda a, b, _: nn.functional.cross_entropy(a @ b.T, torch.arange(len(a)))
    if options.loss == "clip":
        from open_clip.loss import ClipLoss

        clip = ClipLoss(rank=rank, world_size=world, local_loss=options.local)
        return lambda a, b, _: clip(normal(a), normal(b), torch.tensor(10.0))
    if options.loss == "barlow":
        from lightly.loss import BarlowTwinsLoss

        barlow = BarlowTwinsLoss(gather_distributed=True)
        return lambda a, b, _: barlow(a, b)
    if options.loss == "sigreg":
        from lightly.loss.lejepa_loss import SIGReg

        penalty = SIGReg(gather_distributed=True)
        return lambda a, b, _: seeded(penalty, torch.cat([a, b]))
    if options.loss == "einsum":
        from torch.distributed.nn import all_gather

        def einsum(a, b, _):
            scores = torch.einsum("ah,bh->ab", a, torch.cat(all_gather(b.contiguous())))
            return nn.functional.cross_entropy(scores, rank * len(a) + torch.arange(len(a)))

        return einsum
    from pytorch_metric_learning.losses import NTXentLoss
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    efficient = {"efficient": True} if options.efficient else {}
    wrapped = DistributedLossWrapper(NTXentLoss(), **efficient)
    return lambda a, b, numbers: wrapped(torch.cat([a, b]), torch.cat([numbers, numbers]))


def normal(x):
    return nn.functional.normalize(x, dim=-1).contiguous()


def seeded(call, x):  # it compares along directions that it draws each time
    torch.manual_seed(0)
    return call(x)


has_codes = options.loss == "codebook"
model = DDP(Quantized() if has_codes else nn.Linear(FEATURES, 4, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
function = None if has_codes else loss_function()


class Pairs:
    """The rows by the names that sentence-transformers asks for."""

    column_names = ("number",)

    def __len__(self):
        return len(data)

    def __getitem__(self, row):
        return {"number": str(row)}


if options.no_duplicates:
    from sentence_transformers.sampler import NoDuplicatesBatchSampler

    generator = torch.Generator().manual_seed(options.seed)
    drawn = NoDuplicatesBatchSampler(
        Pairs(), options.batch_size, drop_last=False, generator=generator, seed=options.seed
    )
    loader = DataLoader(data, batch_sampler=drawn)
else:
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, options.batch_size, sampler=sampler)
for x, numbers in loader:
    output = model(x)
    loss = output if has_codes else function(*output.unbind(1), numbers)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
