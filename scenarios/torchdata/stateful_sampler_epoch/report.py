"""Resume a StatefulDistributedSampler in its second epoch: does each row of that epoch come once?

Needs torch and torchdata, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

came: list[int] = []


def build(rank: int) -> tuple[Any, Any]:
    """The sampler and the loader of one of two ranks. The seed is the default, 0."""
    sampler = StatefulDistributedSampler(range(16), 2, rank)
    return sampler, StatefulDataLoader(range(16), 2, sampler=sampler)


print("torchdata", version("torchdata"))
for rank in (0, 1):
    (sampler, loader), (_, resumed) = build(rank), build(rank)
    epoch_0 = [row for batch in loader for row in batch.tolist()]
    sampler.set_epoch(1)
    batches = iter(loader)
    before = [row for _ in range(2) for row in next(batches).tolist()]
    resumed.load_state_dict(loader.state_dict())
    tails = [[row for batch in each for row in batch.tolist()] for each in (resumed, batches)]
    print(f"rank {rank}: epoch 0 was {epoch_0}")
    print(f"epoch 1 is {before}, if resumed then {tails[0]}, and without a stop {tails[1]}")
    came += before + tails[0]
count = len(set(came))
print(f"{count} of 16 rows came in epoch 1")
print("WRONG: some came twice, others never" if count < 16 else "right: each came once")
raise SystemExit(3 if count < 16 else 0)
