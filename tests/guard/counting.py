"""Counts what each step of a training does, with guard or without: ``counting.py [guard]
[unstepped] [large]``; ``unstepped`` adds an optimizer that nobody steps, and ``large`` has 300
parameters.

It prints JSON: by step, the operations of torch, the hooks on parameters and modules during the
backward, and the CPU time; the steps that were checked; and by check, the operations of the judge.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from harness.rank.guard.trainings import checked_step
from harness.rank.training.parameters import Accumulation

STEPS = 24
TIMED_STEPS = 500


class Counting(TorchDispatchMode):
    """Counts the operations that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        self.operations[str(function)] += 1
        return function(*arguments, **(keywords or {}))


class CountedAccumulation(Accumulation):
    """Torch does not say which hooks a node of its graph has."""

    open: ClassVar[set[Accumulation]] = set()

    def __init__(self, parameter: Any, function: Any) -> None:
        super().__init__(parameter, function)
        self.open.add(self)

    def remove(self) -> None:
        super().remove()
        self.open.remove(self)


def hooks(model: nn.Module) -> int:
    """The hooks on parameters and where their gradients are added, on modules, and all modules."""
    on_parameters = sum(
        len(p._backward_hooks or {}) + len(p._post_accumulate_grad_hooks or {})  # type: ignore[attr-defined]
        for p in model.parameters()
    )
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    on_modules = sum(len(getattr(m, name)) for m in model.modules() for name in names)
    everywhere = nn.modules.module
    on_all = sum(len(getattr(everywhere, f"_global{name}")) for name in names)
    return on_parameters + len(CountedAccumulation.open) + on_modules + on_all


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    guards: list[Any] = []
    judged: list[int] = []
    if "guard" in sys.argv:
        from harness.rank import guard
        from harness.rank.guard.settings import Settings

        checked_step.Accumulation = CountedAccumulation  # type: ignore[attr-defined]
        guard.start(Settings(every=10**9, quiet=True))
        guards = guard._guards
        mailbox = guards[0].account.mailbox
        judge = mailbox._judge

        def count_judging(posts: Any) -> None:
            with Counting() as counting:
                judge(posts)
            judged.append(counting.operations.total())

        mailbox._judge = count_judging
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    if "large" in sys.argv:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(149)), nn.Linear(8, 4))
    unstepped = [torch.optim.SGD(model.parameters(), 1.0)] if "unstepped" in sys.argv else []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    rows, targets = torch.randn(16, 8), torch.randint(0, 4, (16,))
    hooked = 0

    def step() -> None:
        nonlocal hooked
        loss = F.cross_entropy(model(rows), targets)
        loss.register_hook(lambda gradient: note())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def note() -> None:
        nonlocal hooked
        hooked = hooks(model)

    result: dict[str, Any] = {"operations": [], "hooks": [], "checked": []}
    for _ in range(STEPS):
        with Counting() as counting:
            step()
        result["operations"].append(counting.operations)
        result["hooks"].append(hooked)
    times, handlers = [], []
    for _ in range(TIMED_STEPS):
        spent = guards[0].trainings[-1].costs.spent if guards else 0.0
        began = time.thread_time()
        step()
        times.append(time.thread_time() - began)
        handlers.append(guards[0].trainings[-1].costs.spent - spent if guards else 0.0)
    result["microseconds"] = 1e6 * min(times)
    if guards:
        result["handlers_microseconds"] = 1e6 * min(handlers)
        guards[0].account.mailbox.close()
        result["checked"], result["judged"] = [*guards[0].account.report.steps], judged
    del unstepped
    print(json.dumps(result))


if __name__ == "__main__":
    main()
