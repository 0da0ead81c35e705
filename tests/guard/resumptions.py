"""Tiny trainings that save a checkpoint and end, and those that go on with it: ``resumptions.py
FORM save|resume FOLDER``. They know nothing of guard.

A form is a pair of functions: the first one trains and saves, the second one loads and trains.
"""

from __future__ import annotations

import copy
import importlib
import io
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import LambdaLR

dcp: Any = torch.distributed.checkpoint
BEST = 2
"""The step whose weights are kept as an earlier, better state."""
RATE = 1e-2
DONE, MORE = 4, 3
"""Steps before the save, and after the load."""

Act = Callable[[Path], None]


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

    def __init__(
        self, make: Callable[[Any], Any] = adam, seed: int = 0, how: str = "ddp", decay: float = 1.0
    ) -> None:
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
        self.schedule = LambdaLR(self.optimizer, lambda step: 1 / (1 + decay * step))

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


State = dict[str, Any]
Load = Callable[[Training, State, Path], object]


def saves(
    make: Any = adam, state_of: Callable[[Training], State] = Training.state, how: str = "ddp"
) -> Act:
    """Train and save a state of the training."""

    def act(folder: Path) -> None:
        training = Training(make, how=how).train(DONE)  # it lives while it is saved
        save(state_of(training), folder / "checkpoint.pt")

    return act


def resumes(load: Load, make: Any = adam, how: str = "ddp", name: str = "checkpoint.pt") -> Act:
    """Load the state of a file, and train."""

    def act(folder: Path) -> None:
        training = Training(make, seed=1, how=how)
        load(training, read(folder / name), folder)
        training.train(MORE, DONE)

    return act


def resumes_with(edit: Callable[[State], object], strict: bool = True) -> Act:
    """Edit the state that is loaded."""

    def load(training: Training, state: State, _: Path) -> None:
        edit(state)
        training.load(state, strict)

    return resumes(load)


def load_all(training: Training, state: State, _: Path) -> None:
    training.load(state)


# -- right ones --


def rename(folder: Path) -> None:
    saves()(folder)
    if dist.get_rank() == 0:
        os.rename(folder / "checkpoint.pt", folder / "last.pt")


def save_through_memory(folder: Path) -> None:
    training, buffer = Training().train(DONE), io.BytesIO()
    torch.save({"states": [training.state()]}, buffer)
    if dist.get_rank() == 0:
        (folder / "checkpoint.pt").write_bytes(buffer.getvalue())
    dist.barrier()


def load_weights(training: Training, state: State, _: Path) -> None:
    training.net.load_state_dict(state["model"])


def load_body(training: Training, state: State, _: Path) -> None:
    """A warm start with another head."""
    body = {name: value for name, value in state["model"].items() if not name.startswith("head")}
    training.net.load_state_dict(body, strict=False)


def then_own_state(load: Load) -> Load:
    """The optimizer loads its own state, as a package does for its device."""

    def load_both(training: Training, state: State, folder: Path) -> None:
        load(training, state, folder)
        training.optimizer.load_state_dict(training.optimizer.state_dict())

    return load_both


def load_under_other_names(training: Training, state: State, _: Path) -> None:
    training.load(state)
    training.model = nn.parallel.DistributedDataParallel(nn.Sequential(training.net))


def save_average(folder: Path) -> None:
    """While it saves, the model has the average of its weights."""
    training = Training()
    average = copy.deepcopy(training.net.state_dict())
    for step in range(DONE):
        training.train(1, step)
        for name, value in training.net.state_dict().items():
            average[name].lerp_(value, 0.1)
    raw = copy.deepcopy(training.net.state_dict())
    training.net.load_state_dict(average)
    save({**training.state(), "raw": raw}, folder / "checkpoint.pt")


@torch.no_grad()
def average_weights(training: Training) -> State:
    """A state whose weights are an average; the others are in a list."""
    raw = [value.clone() for value in training.net.parameters()]
    for value in training.net.parameters():
        value.mul_(0.9)
    return {**training.state(), "raw": raw}


@torch.no_grad()
def load_raw_weights(training: Training, state: State, _: Path) -> None:
    training.load(state)
    for value, raw in zip(training.net.parameters(), state["raw"], strict=True):
        value.copy_(raw)


def save_two_files(folder: Path) -> None:
    training = Training().train(DONE)
    save(training.net.state_dict(), folder / "raw.pt")
    state = average_weights(training)
    del state["raw"]
    save(state, folder / "checkpoint.pt")


def load_with_another_rate(training: Training, state: State, _: Path) -> None:
    state["optimizer"]["param_groups"][0]["lr"] = RATE
    training.net.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])


def save_twice(folder: Path) -> None:
    training = Training().train(BEST)
    save(copy.deepcopy(training.state()), folder / "best.pt")
    save(training.train(DONE - BEST, BEST).state(), folder / "checkpoint.pt")


def go_on_from_the_best(folder: Path) -> None:
    Training(seed=1).load(read(folder / "best.pt")).train(MORE, BEST)


def roll_back(folder: Path) -> None:
    training = Training().train(BEST)
    save(training.state(), folder / "checkpoint.pt")
    training.train(3, BEST).load(read(folder / "checkpoint.pt")).train(3, BEST)


def freeze_body(training: Training, state: State, _: Path) -> None:
    training.load(state)
    training.net.body.requires_grad_(False)
    training.model = nn.parallel.DistributedDataParallel(training.net)


def train_two(folder: Path, is_resumed: bool) -> None:
    """The head has an optimizer of its own."""
    training = Training(lambda weights: adam(list(weights)[:4]), seed=int(is_resumed))
    second = adam(training.net.head.parameters())
    if is_resumed:
        state = read(folder / "checkpoint.pt")
        training.load(state)
        second.load_state_dict(state["second"])
    for step in range(DONE, DONE + MORE) if is_resumed else range(DONE):
        second.zero_grad()
        training.train(1, step)
        second.step()
    if not is_resumed:
        save({**training.state(), "second": second.state_dict()}, folder / "checkpoint.pt")


def wrap_optimizer(training: Training) -> None:
    training.optimizer = Slow(training.optimizer)


def save_slow(folder: Path) -> None:
    training = Training()
    wrap_optimizer(training)
    save(training.train(DONE).state(), folder / "checkpoint.pt")


def load_then_wrap(training: Training, state: State, _: Path) -> None:
    """The save came right after a pull, so the weights are the slow ones."""
    training.load(state)
    wrap_optimizer(training)


# -- with torch.distributed.checkpoint, or shards --


def save_distributed(how: str, call: Any = dcp.save) -> Act:
    def act(folder: Path) -> None:
        training = Training(how=how).train(DONE)
        model, optimizer = get_state_dict(training.model, training.optimizer)
        future = call({"model": model, "optimizer": optimizer}, checkpoint_id=folder / "dcp")
        if future is not None and hasattr(future, "result"):
            future.result()

    return act


def resume_distributed(
    how: str, keeps_rate: bool = False, after: Callable[[Training], None] = lambda training: None
) -> Act:
    def act(folder: Path) -> None:
        training = Training(seed=1, how=how)
        model, optimizer = get_state_dict(training.model, training.optimizer)
        state: State = {"model": model, "optimizer": optimizer}
        rate = state["optimizer"]["param_groups"][0]["lr"]
        dcp.load(state, checkpoint_id=folder / "dcp")
        if keeps_rate:
            state["optimizer"]["param_groups"][0]["lr"] = rate
        fill(training, state)
        after(training)
        training.train(MORE, DONE)

    return act


def fill(training: Training, state: State, options: Any = None) -> None:
    set_state_dict(
        training.model,
        training.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=options,
    )


def gathered_state(training: Training) -> State:
    """Rank 0 writes what it gathered of the shards."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model, optimizer = get_state_dict(training.model, training.optimizer, options=options)
    return {"model": model, "optimizer": optimizer}


@torch.no_grad()
def change_shard(training: Training) -> None:
    if dist.get_rank() == 1:
        shard: Any = training.net.body.weight
        shard._local_tensor.add_(1)


Forms = dict[str, tuple[Act, Act]]
RIGHT: Forms = {
    "usual": (saves(), resumes(load_all)),
    "without_moments": (saves(descent), resumes(load_all, descent)),
    "moved_and_renamed": (rename, resumes(load_all, name="last.pt")),
    "through_memory": (
        save_through_memory,
        resumes(lambda training, state, _: training.load(state["states"][0])),
    ),
    "new_optimizer_on_purpose": (saves(), resumes(load_weights)),
    "part_of_the_model": (saves(), resumes(load_body)),
    "part_of_the_model_without_moments": (
        saves(descent),
        resumes(then_own_state(load_body), descent),
    ),
    "own_state_of_a_new_optimizer": (saves(), resumes(then_own_state(load_weights))),
    "another_model": (saves(), resumes(load_under_other_names, how="")),
    "averaged_weights": (
        save_average,
        resumes_with(lambda state: state.update(model=state["raw"])),
    ),
    "averaged_weights_without_names": (saves(state_of=average_weights), resumes(load_raw_weights)),
    "averaged_weights_in_two_files": (
        save_two_files,
        resumes(
            lambda training, state, folder: training.load(
                {**state, "model": read(folder / "raw.pt")}
            )
        ),
    ),
    "another_rate_on_purpose": (saves(), resumes(load_with_another_rate)),
    "earlier_save": (save_twice, go_on_from_the_best),
    "rolled_back": (roll_back, resumes(load_all)),
    "other_parts_frozen": (saves(), resumes(freeze_body, how="")),
    "two_optimizers": (partial(train_two, is_resumed=False), partial(train_two, is_resumed=True)),
    "state_around_the_optimizer_made_after_the_load": (save_slow, resumes(load_then_wrap)),
    "distributed": (save_distributed("ddp"), resume_distributed("ddp")),
    "sharded": (save_distributed("fsdp2"), resume_distributed("fsdp2")),
    "sharded_while_it_trains": (
        save_distributed("fsdp2", lambda *state, **place: dcp.async_save(*state, **place)),
        resume_distributed("fsdp2"),
    ),
    "sharded_to_copies": (save_distributed("fsdp2"), resume_distributed("ddp")),
    "gathered_shards": (
        saves(state_of=gathered_state, how="fsdp2"),
        resumes(
            lambda training, state, _: fill(
                training, state, StateDictOptions(full_state_dict=True)
            ),
            how="fsdp2",
        ),
    ),
}


def lose_moment(state: State) -> None:
    state["optimizer"]["state"][2]["exp_avg"].zero_()


def exchange_moments(state: State) -> None:
    """Those of the two parts of the norm: they have the same shape."""
    moments = state["optimizer"]["state"]
    moments[2], moments[3] = moments[3], moments[2]


@torch.no_grad()
def change_weight(training: Training, state: State, _: Path) -> None:
    training.load(state)
    if dist.get_rank() == 1:
        training.net.norm.weight[0] += 1


def wrap_then_load(training: Training, state: State, _: Path) -> None:
    wrap_optimizer(training)
    training.load(state)


WRONG: Forms = {
    "moment_lost": (saves(), resumes_with(lose_moment)),
    "state_of_a_parameter_lost": (
        saves(),
        resumes_with(lambda state: state["optimizer"]["state"].pop(2)),
    ),
    "weight_not_saved": (
        saves(),
        resumes_with(lambda state: state["model"].pop("head.weight"), strict=False),
    ),
    "moments_in_another_order": (saves(), resumes_with(exchange_moments)),
    "one_rank_lost_a_weight": (saves(), resumes(change_weight)),
    # The names in the file begin with ``module``, and a load that is not strict ignores them.
    "names_of_a_wrapper": (
        saves(state_of=lambda one: {**one.state(), "model": one.model.state_dict()}),
        resumes_with(lambda state: None, strict=False),
    ),
    "state_around_the_optimizer_lost": (save_slow, resumes(wrap_then_load)),
    # The load fills tensors, and the loop gives the optimizer its own rate again.
    "rate_not_filled": (save_distributed("ddp"), resume_distributed("ddp", keeps_rate=True)),
    # Rank 1 has other values of a weight after the load.
    "shard_lost": (save_distributed("fsdp2"), resume_distributed("fsdp2", after=change_shard)),
}


# -- with files of safetensors, of which guard knows the tensors alone --


def save_tensors(folder: Path, has_all: bool = False, is_wrapped: bool = False) -> None:
    """Weights are in such a file; so are the moments, or the names are those of DDP's model."""
    files: Any = importlib.import_module("safetensors.torch")
    training = Training(decay=0.0).train(MORE + DONE)
    if dist.get_rank() == 0:
        weights: nn.Module = training.model if is_wrapped else training.net
        files.save_file(weights.state_dict(), folder / "model.safetensors")
        state = training.optimizer.state_dict()
        if has_all:
            moments = {f"{n}.{k}": v for n, s in state["state"].items() for k, v in s.items()}
            files.save_file(moments, folder / "optimizer.safetensors")
        else:
            torch.save(state, folder / "optimizer.pt")
    dist.barrier()


def resume_tensors(folder: Path, has_all: bool = False, is_wrapped: bool = False) -> None:
    """The load is not strict if it knows no name of a wrapper."""
    files: Any = importlib.import_module("safetensors.torch")
    training = Training(seed=1, decay=0.0)
    weights = files.load_file(folder / "model.safetensors")
    training.net.load_state_dict(weights, strict=not is_wrapped)
    state: Any = training.optimizer.state_dict()
    if has_all:
        state["state"] = {}
        for key, value in files.load_file(folder / "optimizer.safetensors").items():
            number, _, kind = key.partition(".")
            state["state"].setdefault(int(number), {})[kind] = value
    else:
        state = torch.load(folder / "optimizer.pt")
    training.optimizer.load_state_dict(state)
    training.train(MORE + DONE)


FILES: Forms = {
    "files": (save_tensors, resume_tensors),
    "files_alone": (partial(save_tensors, has_all=True), partial(resume_tensors, has_all=True)),
    "files_of_a_wrapper": (
        partial(save_tensors, is_wrapped=True),
        partial(resume_tensors, is_wrapped=True),
    ),
}


def main() -> None:
    name, act, folder = sys.argv[1:]
    dist.init_process_group("gloo")
    {**RIGHT, **WRONG, **FILES}[name][act == "resume"](Path(folder))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
