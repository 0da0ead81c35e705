"""A tiny training that can be saved and resumed. It knows nothing of guard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import LambdaLR

RATE = 1e-2
DONE, MORE = 4, 3
"""Steps before the save, and after the load."""

Act = Callable[[Path], None]


class Forms:
    """Resumptions by name: a function that trains and saves, and one that loads and trains."""

    def __init__(self, others: Forms | None = None) -> None:
        self.acts: dict[str, tuple[Act, Act]] = dict(others.acts) if others else {}
        self.right: list[str] = list(others.right) if others else []

    def form(self, saves: Act, *, is_right: bool = True) -> Callable[[Act], Act]:
        """Note a form by its act that resumes."""

        def note(resumes: Act) -> Act:
            self.acts[resumes.__name__] = saves, resumes
            self.right.extend([resumes.__name__] if is_right else [])
            return resumes

        return note


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.norm(self.body(x).tanh()))
        return hidden


def adam(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, RATE)


def descent(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, RATE)


class Training:
    """A model with its optimizer and schedule on this rank."""

    def __init__(self, make: Callable[[Any], Any] = adam, seed: int = 0, how: str = "ddp") -> None:
        torch.manual_seed(seed)
        self.net = Net()
        self.model: Any = self.net
        if how == "ddp" and dist.get_world_size() > 1:
            self.model = nn.parallel.DistributedDataParallel(self.net)
        if how == "fsdp2":
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for part in (self.net.body, self.net.head, self.net):
                fully_shard(part, mesh=mesh)
        self.optimizer = make(self.net.parameters())
        self.schedule = LambdaLR(self.optimizer, lambda step: 1 / (1 + step))

    def train(self, steps: int, start: int = 0) -> Training:
        for step in range(start, start + steps):
            generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
            rows = torch.randn(4, 8, generator=generator)
            targets = torch.randint(0, 4, (4,), generator=generator)
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(rows), targets).backward()
            self.optimizer.step()
            self.schedule.step()
        return self

    def state(self) -> dict[str, Any]:
        parts = {"model": self.net, "optimizer": self.optimizer, "schedule": self.schedule}
        return {name: part.state_dict() for name, part in parts.items()}

    def load(self, state: dict[str, Any], strict: bool = True) -> Training:
        self.net.load_state_dict(state["model"], strict=strict)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        return self


def save(state: Any, file: Any) -> None:
    """As most loops do: rank 0 alone."""
    if dist.get_rank() == 0:
        torch.save(state, file)
    dist.barrier()


def read(file: Any) -> Any:
    return torch.load(file, weights_only=False)


class Slow:
    """Pulls the weights back to slow copies of them. Its state is that of the optimizer alone."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.state = {p: {"slow": p.detach().clone()} for p in parameters}
        self.steps = 0

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        self.steps += 1
        for parameter, state in self.state.items() if self.steps % 2 == 0 else ():
            state["slow"].lerp_(parameter, 0.5)
            parameter.copy_(state["slow"])
