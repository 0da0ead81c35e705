"""Trains with a fault while trackers log: ``tracked.py FOLDER TRACKER...``. It prints JSON: what
each tracker then has."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEPS = 8
Log = Callable[[int, float], None]
End = Callable[[], Any]


def tensorboard(folder: Path) -> tuple[Log, End]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "board"))
    writer.add_scalar("loss", 0.0, 0)

    def end() -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        writer.close()
        accumulator = EventAccumulator(str(folder / "board"))
        accumulator.Reload()
        scalars = accumulator.Tags()["scalars"]
        texts = [
            event.tensor_proto.string_val[0].decode()
            for event in accumulator.Tensors("guard/alarm/text_summary")
        ]
        steps = [event.step for event in accumulator.Scalars("loss")]
        count = accumulator.Scalars("guard/alarms")[-1].value
        files = len(list((folder / "board").iterdir()))
        return {"names": scalars, "alarms": texts, "steps": steps, "last": count, "files": files}

    return lambda step, loss: writer.add_scalar("loss", loss, step), end


def wandb(folder: Path) -> tuple[Log, End]:
    import wandb

    run = wandb.init(project="p", dir=str(folder), mode="offline")

    def end() -> Any:
        summary, step = dict(run.summary), run.step
        run.finish()
        names = sorted(name for name in summary if not name.startswith("_"))
        return {"names": names, "last": summary["guard/alarms"], "steps": step}

    return lambda step, loss: run.log({"loss": loss}), end


def main() -> None:
    folder = Path(sys.argv[1])
    from harness.rank import guard
    from harness.rank.guard.settings import Settings

    guard.start(Settings(every=1, out=str(folder)))
    ways = {name: globals()[name](folder) for name in sys.argv[2:]}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    batches = iter(torch.utils.data.DataLoader(data, 4))
    for step in range(STEPS):
        for _ in range(2):  # a fault: two micro-batches, of which no loss is divided by two
            rows, targets = next(batches)
            loss = nn.functional.cross_entropy(model(rows), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for log, _end in ways.values():
            log(step, float(loss.detach()))
        time.sleep(0.05)  # a training's step, in which guard's threads run
    live = guard._guards[0]
    live.close()  # the trackers are read before the process ends
    print(json.dumps({name: end() for name, (_, end) in ways.items()}))


if __name__ == "__main__":
    main()
