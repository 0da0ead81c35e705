"""Resume a SamplerWrapper in its second epoch: does each row of that epoch come once?

Needs torch and torchdata, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version

from torchdata import nodes
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


def loader(rank: int) -> nodes.Loader:
    """That of one of two ranks. The seed is the default, 0."""
    sampler = StatefulDistributedSampler(range(16), 2, rank)
    return nodes.Loader(nodes.Batcher(nodes.SamplerWrapper(sampler), 2))


print("torchdata", version("torchdata"))
came: list[int] = []
for rank in (0, 1):
    first, resumed = loader(rank), loader(rank)
    epoch_0 = [row for batch in first for row in batch]
    batches = iter(first)
    before = [row for _ in range(2) for row in next(batches)]
    resumed.load_state_dict(first.state_dict())
    tails = [[row for batch in each for row in batch] for each in (resumed, batches)]
    print(f"rank {rank}: epoch 0 was {epoch_0}")
    print(f"epoch 1 is {before}, if resumed then {tails[0]}, and without a stop {tails[1]}")
    came += before + tails[0]
count = len(set(came))
print(f"{count} of 16 rows came in epoch 1")
print("WRONG: some came twice, others never" if count < 16 else "right: each came once")
raise SystemExit(3 if count < 16 else 0)
