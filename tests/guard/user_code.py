"""What users do with models and optimizers: cases that ``server`` runs, each in a process of its
own, with guard or without."""

from __future__ import annotations

import copy
import io
import os
import pickle
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def _nothing(step: int) -> None:
    return None


class Classifier(nn.Module):
    """A model that computes its loss, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layer(x), y)


def _train(
    model: Any = None,
    optimizer: Any = None,
    before_step: Callable[[int], None] = _nothing,
    steps: int = 6,
) -> float:
    model = Classifier() if model is None else model
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
    step_of = getattr(optimizer, "compiled", optimizer.step)
    for step in range(1, steps + 1):
        model(torch.ones(3, 4), torch.zeros(3, dtype=torch.long)).backward()
        before_step(step)
        step_of()
        optimizer.zero_grad()
    return float(sum(weight.double().sum() for weight in model.parameters()))


def copies() -> Any:
    """The model and the optimizer are copied and saved between backward and step."""
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    sums = []

    def copy_all(step: int) -> None:
        pair = model, optimizer
        for copied in (
            copy.deepcopy(pair),
            pickle.loads(pickle.dumps(pair)),
            _through_a_file(pair),
        ):
            sums.append(float(copied[0].layer.weight.detach().sum()))

    return _train(model, optimizer, copy_all), sums


def _through_a_file(content: Any) -> Any:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def tensors() -> Any:
    """Tensors that are no parameters train; they are copied, and saved with their loss."""
    weight = torch.ones(4, 4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    sums = []
    for _ in range(6):
        loss = F.mse_loss(torch.ones(3, 4) @ weight, torch.zeros(3, 4))
        loss.backward()
        sums.append(float(_through_a_file((weight, loss))[0].sum()))
        optimizer.step()
        optimizer.zero_grad()
    return sums


def scripts() -> Any:
    """Losses and models are compiled by torch.jit."""
    losses = [F.mse_loss, F.nll_loss, F.binary_cross_entropy_with_logits, F.cross_entropy]
    names = [torch.jit.script(loss).name for loss in losses]
    return names, _train(torch.jit.script(Classifier()))


def symbols() -> Any:
    """A model with a loss is traced as symbols, and exported."""
    model = Classifier()
    example = torch.ones(3, 4), torch.zeros(3, dtype=torch.long)
    exported = torch.export.export(model, example)
    targets = [str(node.target) for node in exported.graph.nodes]
    return torch.fx.symbolic_trace(model).code, targets, _train(model)


def compiles() -> Any:
    """A model with its loss, and the optimizer's step, are compiled: in as many graphs."""
    from torch._dynamo.utils import counters

    model = Classifier()
    optimizer: Any = torch.optim.AdamW(model.parameters(), 1e-2)

    def step() -> Any:
        return optimizer.step()

    optimizer.compiled = torch.compile(step, backend="eager")
    total = _train(torch.compile(model, backend="eager", fullgraph=True), optimizer, steps=12)
    return total, counters["stats"]["unique_graphs"]


def without_init() -> Any:
    """An optimizer does not call the one that it inherits from."""

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            self.param_groups, self.state = [{"params": list(parameters)}], defaultdict(dict)

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                parameter.data -= 0.1 * parameter.grad

        def zero_grad(self, set_to_none: bool = True) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.grad = None

    model = Classifier()
    return _train(model, Own(model.parameters()))


def many_optimizers() -> Any:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2000)]
    optimizers = [torch.optim.SGD([weight], 0.1) for weight in weights]
    for _ in range(2):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            (weight * weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return float(sum(weight.detach().sum() for weight in weights))


def threads() -> Any:
    """Two threads train, each one model, with micro-batches of different numbers."""
    sums: dict[int, float] = {}
    start_of_step = threading.Barrier(2)  # otherwise one may end before the other begins

    def train(number: int) -> None:
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(30):
            start_of_step.wait()
            micro_batches = 1 + 3 * number
            for _ in range(micro_batches):
                loss = model(torch.ones(3, 4), torch.zeros(3, dtype=torch.long))
                (loss / micro_batches).backward()
                time.sleep(0.001)
            optimizer.step()
            optimizer.zero_grad()
        sums[number] = 1.0

    both = [threading.Thread(target=train, args=(number,)) for number in (0, 1)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    return sums


def clock_jumps() -> Any:
    """Clocks go back by days."""
    model, clock = Classifier(), time.perf_counter

    def jump(step: int) -> None:
        if step == 4:
            time.perf_counter = lambda: clock() - 1e6
            time.thread_time = lambda: -5.0
            time.time = lambda: -1e9

    return _train(model, before_step=jump, steps=12)


def report_vanishes() -> Any:
    """Somebody removes the folder of the report."""

    def remove(step: int) -> None:
        if step == 3:
            shutil.rmtree(os.environ["OUT"])

    return _train(before_step=remove, steps=12)


def raises() -> None:
    _train(before_step=lambda step: [][step] if step > 3 else None)  # type: ignore[arg-type]


def exits() -> None:
    _train(before_step=lambda step: sys.exit(5) if step > 3 else None)


def exits_at_once() -> None:
    _train(before_step=lambda step: os._exit(6) if step > 3 else None)


def interrupted() -> None:
    _train(before_step=lambda step: os.kill(os.getpid(), signal.SIGINT) if step > 3 else None)
