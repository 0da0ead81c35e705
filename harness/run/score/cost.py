"""What a detector costs in a step of a model of 34 million parameters, on two ranks over gloo."""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.rank import attachment, forks
from harness.rank.events import Patches
from harness.rank.forks import Children
from harness.run.run_config import DetectorConfig

RANKS = 2
WARM, STEPS = 2, 5
WIDTH, LAYERS, WORDS = 512, 8, 16_384
CLASSES = 64
"""The classes of the head; few, so that a step is short."""
ROWS, TOKENS = 8, 128
"""The size of a batch on each rank."""


@dataclass(frozen=True)
class Cost:
    """The time of a detector's calls and of its hooks in a step."""

    detector: str
    milliseconds: float
    share: float
    """Of the whole step."""


def measured(detectors: Sequence[DetectorConfig]) -> tuple[float, list[Cost]]:
    """The milliseconds of a step without detectors, and the cost of each, all attached at once."""
    import torch  # noqa: F401  the ranks share it

    settings = [vars(one) for one in detectors]
    with tempfile.TemporaryDirectory() as folder, Children() as ranks:
        for rank in range(RANKS):
            ranks.start(functools.partial(_train, rank, Path(folder), settings))
        content = next(message for child, message in ranks.hear() if message or child.code)
    if content is None:
        raise ChildProcessError("a rank failed; its error is above")
    step = statistics.median(content["steps"][WARM:])
    return 1000 * step, list(_costs(content["calls"], step))


def _costs(calls: Mapping[str, Sequence[float]], step: float) -> Iterator[Cost]:
    for name, seconds in calls.items():
        median = statistics.median(seconds[WARM:])
        yield Cost(name, 1000 * median, median / step)


def _train(rank: int, folder: Path, settings: Sequence[Mapping[str, str]]) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    hooks = Hooks()
    watcher = attachment.Attachment(settings, folder / "kept", rank, hooks.running)
    watcher.install()
    hooks.install()
    model = DistributedDataParallel(_model())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    data = torch.utils.data.TensorDataset(torch.randint(WORDS, (ROWS * (WARM + STEPS), TOKENS)))
    loader = torch.utils.data.DataLoader(data, batch_size=ROWS)
    steps, calls, before = [], dict[str, list[float]](), dict[str, float]()
    for (ids,) in loader:
        began, seconds_before = time.perf_counter(), _seconds(watcher, hooks)
        model((ids + rank) % WORDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after = _seconds(watcher, hooks)
        for name, seconds in after.items():
            calls.setdefault(name, []).append(seconds - before.get(name, 0.0))
        steps.append(
            time.perf_counter() - began - sum(after.values()) + sum(seconds_before.values())
        )
        before = after
    if rank == 0:
        forks.report({"steps": steps, "calls": calls})
    dist.barrier()


class Hooks:
    """The time of the hooks that each detector registers, also within another hook of its own."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._of = ""
        """The detector that is running; empty between two."""

    def install(self) -> None:
        """Time what is registered from now on while a detector runs."""
        import torch
        from torch import nn

        patches = Patches()
        for owner, name in (
            (torch.Tensor, "register_hook"),
            (nn.Module, "register_forward_hook"),
            (nn.Module, "register_forward_pre_hook"),
            (torch.optim.Optimizer, "register_step_pre_hook"),
        ):
            patches.wrap(owner, name, self._register)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """The context in which a detector runs."""
        before, self._of = self._of, name
        try:
            yield
        finally:
            self._of = before

    def _register(
        self, register: Any, /, owner: Any, hook: Any, *arguments: Any, **named: Any
    ) -> Any:
        timed_hook = self._timed(hook, self._of) if self._of else hook
        return register(owner, timed_hook, *arguments, **named)

    def _timed(self, hook: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            with self.running(name):
                value = hook(*arguments, **named)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
            return value

        return timed


def _model() -> Any:
    """A language model whose output has ``logits`` and ``loss``, as in transformers."""
    from torch import nn

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, ids: Any) -> Any:
            logits = self.head(self.layers(self.embed(ids)))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten() % CLASSES)
            return SimpleNamespace(logits=logits, loss=loss)

    return Language()


def _seconds(watcher: attachment.Attachment, hooks: Hooks) -> dict[str, float]:
    watched: list[Any] = [*watcher.trainings, *watcher.readings]
    detectors = [one for each in watched for one in each.detectors]
    return {one.name: one.seconds + hooks.seconds.get(one.name, 0.0) for one in detectors}
