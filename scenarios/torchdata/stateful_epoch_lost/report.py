"""Load a StatefulDataLoader's state from the end of an epoch: has the next epoch all rows?

Needs torch and torchdata, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader


def epoch(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch.tolist()]


loader, resumed = (StatefulDataLoader(range(12), 2) for _ in range(2))
print("torchdata", version("torchdata"))
before = epoch(loader)
print(f"the epoch before the save: {before}")
resumed.load_state_dict(loader.state_dict())
after = [epoch(resumed) for _ in range(3)]
print(f"three epochs after the load: {after}")
print("WRONG: an epoch is lost" if after != [before] * 3 else "right: all epochs have all rows")
raise SystemExit(3 if after != [before] * 3 else 0)
