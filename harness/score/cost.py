"""What a detector costs in a step of a model of 34 million parameters, on two ranks over gloo."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config.run_config import DetectorConfig
from harness.runs import attachment

RANKS = 2
WARM, STEPS = 2, 5
WIDTH, LAYERS, WORDS = 512, 8, 16_384
ROWS, TOKENS = 8, 128
"""Of a batch on each rank."""


@dataclass(frozen=True)
class Cost:
    """The time of a detector's calls after a step; its hooks are not in it."""

    detector: str
    milliseconds: float
    share: float
    """Of the whole step."""


def measured(detectors: Sequence[DetectorConfig]) -> tuple[float, list[Cost]]:
    """The milliseconds of a step without detectors, and the cost of each, all attached at once."""
    from torch.multiprocessing.spawn import start_processes

    with tempfile.TemporaryDirectory() as folder:
        wanted = [vars(one) for one in detectors]
        start_processes(_train, (Path(folder), wanted), nprocs=RANKS, start_method="spawn")
        content = json.loads((Path(folder) / "seconds.json").read_text())
    step = statistics.median(content["steps"][WARM:])
    return 1000 * step, list(_costs(content["calls"], step))


def _costs(calls: Mapping[str, Sequence[float]], step: float) -> Iterator[Cost]:
    for name, seconds in calls.items():
        own = statistics.median(seconds[WARM:])
        yield Cost(name, 1000 * own, own / step)


def _train(rank: int, folder: Path, wanted: Sequence[Mapping[str, str]]) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    made = attachment.Attachment(wanted, folder / "kept", rank)
    made.install()
    model = DistributedDataParallel(_model())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    data = torch.utils.data.TensorDataset(torch.randint(WORDS, (ROWS * (WARM + STEPS), TOKENS)))
    loader = torch.utils.data.DataLoader(data, batch_size=ROWS)
    steps, calls, before = [], dict[str, list[float]](), dict[str, float]()
    for (ids,) in loader:
        began, given = time.perf_counter(), _seconds(made)
        model((ids + rank) % WORDS).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after = _seconds(made)
        for name, seconds in after.items():
            calls.setdefault(name, []).append(seconds - before.get(name, 0.0))
        steps.append(time.perf_counter() - began - sum(after.values()) + sum(given.values()))
        before = after
    if rank == 0:
        (folder / "seconds.json").write_text(json.dumps({"steps": steps, "calls": calls}))
    dist.barrier()


def _model() -> Any:
    from torch import nn

    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)
    layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), layers, nn.Linear(WIDTH, 64))


def _seconds(made: attachment.Attachment) -> dict[str, float]:
    watched: list[Any] = [*made.trainings, *made.readings]
    return {one.name: one.seconds for each in watched for one in each.detectors}
