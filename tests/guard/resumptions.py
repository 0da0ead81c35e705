"""Tiny trainings that save a checkpoint and end, and those that go on with it: ``resumptions.py
FORM save|resume FOLDER``. They know nothing of guard.

A form is a pair of functions: the first one trains and saves, the second one loads and trains.
"""

from __future__ import annotations

import copy
import io
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.guard import sharded_resumptions
from tests.guard.saved_training import (
    DONE,
    MORE,
    RATE,
    Act,
    Forms,
    Slow,
    Training,
    adam,
    descent,
    read,
    save,
)

FORMS = Forms(sharded_resumptions.FORMS)
form = FORMS.form
BEST = 2
"""The step whose weights are kept as an earlier, better state."""


def _saves(make: Any = adam, how: str = "ddp") -> Act:
    def act(folder: Path) -> None:
        training = Training(make, how=how).train(DONE)
        save(training.state(), folder / "checkpoint.pt")

    return act


# -- right ones --


@form(_saves())
def usual(folder: Path) -> None:
    Training(seed=1).load(read(folder / "checkpoint.pt")).train(MORE, DONE)


@form(_saves(descent))
def without_moments(folder: Path) -> None:
    Training(descent, seed=1).load(read(folder / "checkpoint.pt")).train(MORE, DONE)


def _move_checkpoint(folder: Path) -> None:
    _saves()(folder)
    if dist.get_rank() == 0:
        os.rename(folder / "checkpoint.pt", folder / "last.pt")


@form(_move_checkpoint)
def moved_and_renamed(folder: Path) -> None:
    usual_state = read(folder / "last.pt")
    Training(seed=1).load(usual_state).train(MORE, DONE)


def _through_memory(folder: Path) -> None:
    training, buffer = Training().train(DONE), io.BytesIO()
    torch.save({"states": [training.state()]}, buffer)
    if dist.get_rank() == 0:
        (folder / "checkpoint.pt").write_bytes(buffer.getvalue())
    dist.barrier()


@form(_through_memory)
def through_memory(folder: Path) -> None:
    Training(seed=1).load(read(folder / "checkpoint.pt")["states"][0]).train(MORE, DONE)


@form(_saves())
def new_optimizer_on_purpose(folder: Path) -> None:
    training = Training(seed=1)
    training.net.load_state_dict(read(folder / "checkpoint.pt")["model"])
    training.train(MORE, DONE)


@form(_saves())
def part_of_the_model(folder: Path) -> None:
    """A warm start with another head."""
    training, state = Training(seed=1), read(folder / "checkpoint.pt")["model"]
    body = {name: value for name, value in state.items() if not name.startswith("head")}
    training.net.load_state_dict(body, strict=False)
    training.train(MORE, DONE)


@form(_saves(descent))
def part_of_the_model_without_moments(folder: Path) -> None:
    """A warm start, whose optimizer loads its own state, as a package does for its device."""
    training = Training(descent, seed=1)
    body = read(folder / "checkpoint.pt")["model"]
    training.net.load_state_dict({n: v for n, v in body.items() if "head" not in n}, strict=False)
    training.optimizer.load_state_dict(training.optimizer.state_dict())
    training.train(MORE, DONE)


@form(_saves())
def own_state_of_a_new_optimizer(folder: Path) -> None:
    training = Training(seed=1)
    training.net.load_state_dict(read(folder / "checkpoint.pt")["model"])
    training.optimizer.load_state_dict(training.optimizer.state_dict())
    training.train(MORE, DONE)


@form(_saves())
def another_model(folder: Path) -> None:
    """Its weights have other names."""
    training, state = Training(seed=1, how=""), read(folder / "checkpoint.pt")
    training.load(state)
    training.model = nn.parallel.DistributedDataParallel(nn.Sequential(training.net))
    training.train(MORE, DONE)


def _averaged(folder: Path) -> None:
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


@form(_averaged)
def averaged_weights(folder: Path) -> None:
    state = read(folder / "checkpoint.pt")
    Training(seed=1).load({**state, "model": state["raw"]}).train(MORE, DONE)


def _averaged_without_names(folder: Path) -> None:
    """The file has the weights themselves in a list."""
    training = Training().train(DONE)
    raw = [value.clone() for value in training.net.parameters()]
    with torch.no_grad():
        for value in training.net.parameters():
            value.mul_(0.9)
    save({**training.state(), "raw": raw}, folder / "checkpoint.pt")


@form(_averaged_without_names)
def averaged_weights_without_names(folder: Path) -> None:
    state = read(folder / "checkpoint.pt")
    training = Training(seed=1).load(state)
    with torch.no_grad():
        for value, raw in zip(training.net.parameters(), state["raw"], strict=True):
            value.copy_(raw)
    training.train(MORE, DONE)


def _averaged_in_two_files(folder: Path) -> None:
    training = Training().train(DONE)
    save(training.net.state_dict(), folder / "raw.pt")
    with torch.no_grad():
        for value in training.net.parameters():
            value.mul_(0.9)
    save(training.state(), folder / "checkpoint.pt")


@form(_averaged_in_two_files)
def averaged_weights_in_two_files(folder: Path) -> None:
    state = read(folder / "checkpoint.pt")
    Training(seed=1).load({**state, "model": read(folder / "raw.pt")}).train(MORE, DONE)


@form(_saves())
def another_rate_on_purpose(folder: Path) -> None:
    state = read(folder / "checkpoint.pt")
    state["optimizer"]["param_groups"][0]["lr"] = RATE
    training = Training(seed=1)
    training.net.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.train(MORE, DONE)


def _twice(folder: Path) -> None:
    training = Training().train(BEST)
    state = copy.deepcopy(training.state())
    save(state, folder / "best.pt")
    save(training.train(DONE - BEST, BEST).state(), folder / "checkpoint.pt")


@form(_twice)
def earlier_save(folder: Path) -> None:
    Training(seed=1).load(read(folder / "best.pt")).train(MORE, BEST)


def _rolls_back(folder: Path) -> None:
    training = Training().train(BEST)
    save(training.state(), folder / "checkpoint.pt")
    training.train(3, BEST).load(read(folder / "checkpoint.pt")).train(3, BEST)


@form(_rolls_back)
def rolled_back(folder: Path) -> None:
    usual(folder)


@form(_saves())
def other_parts_frozen(folder: Path) -> None:
    training = Training(seed=1, how="").load(read(folder / "checkpoint.pt"))
    training.net.body.requires_grad_(False)
    training.model = nn.parallel.DistributedDataParallel(training.net)
    training.train(MORE, DONE)


def _two_optimizers(seed: int) -> tuple[Training, Any]:
    training = Training(lambda weights: adam(list(weights)[:4]), seed)
    return training, adam(training.net.head.parameters())


def _train_both(training: Training, second: Any, steps: int, start: int) -> None:
    for step in range(start, start + steps):
        second.zero_grad()
        training.train(1, step)
        second.step()


def _saves_two(folder: Path) -> None:
    training, second = _two_optimizers(0)
    _train_both(training, second, DONE, 0)
    save({**training.state(), "second": second.state_dict()}, folder / "checkpoint.pt")


@form(_saves_two)
def two_optimizers(folder: Path) -> None:
    training, second = _two_optimizers(1)
    state = read(folder / "checkpoint.pt")
    training.load(state)
    second.load_state_dict(state["second"])
    _train_both(training, second, MORE, DONE)


# -- wrong ones --


@form(_saves(), is_right=False)
def moment_lost(folder: Path) -> None:
    state = read(folder / "checkpoint.pt")
    state["optimizer"]["state"][2]["exp_avg"].zero_()
    Training(seed=1).load(state).train(MORE, DONE)


@form(_saves(), is_right=False)
def state_of_a_parameter_lost(folder: Path) -> None:
    state = read(folder / "checkpoint.pt")
    del state["optimizer"]["state"][2]
    Training(seed=1).load(state).train(MORE, DONE)


@form(_saves(), is_right=False)
def weight_not_saved(folder: Path) -> None:
    state = read(folder / "checkpoint.pt")
    del state["model"]["head.weight"]
    Training(seed=1).load(state, strict=False).train(MORE, DONE)


@form(_saves(), is_right=False)
def moments_in_another_order(folder: Path) -> None:
    """Those of the two parts of the norm: they have the same shape."""
    state = read(folder / "checkpoint.pt")
    moments = state["optimizer"]["state"]
    moments[2], moments[3] = moments[3], moments[2]
    Training(seed=1).load(state).train(MORE, DONE)


@form(_saves(), is_right=False)
def one_rank_lost_a_weight(folder: Path) -> None:
    training = Training(seed=1).load(read(folder / "checkpoint.pt"))
    if dist.get_rank() == 1:
        with torch.no_grad():
            training.net.norm.weight[0] += 1
    training.train(MORE, DONE)


def _saves_wrapped(folder: Path) -> None:
    training = Training().train(DONE)
    save({**training.state(), "model": training.model.state_dict()}, folder / "checkpoint.pt")


@form(_saves_wrapped, is_right=False)
def names_of_a_wrapper(folder: Path) -> None:
    """The names in the file begin with ``module``, and a load that is not strict ignores them."""
    Training(seed=1).load(read(folder / "checkpoint.pt"), strict=False).train(MORE, DONE)


def _slow(seed: int) -> Training:
    training = Training(adam, seed)
    training.optimizer = Slow(training.optimizer)
    return training


def _saves_slow(folder: Path) -> None:
    training = _slow(0).train(DONE)
    save(training.state(), folder / "checkpoint.pt")


@form(_saves_slow, is_right=False)
def state_around_the_optimizer_lost(folder: Path) -> None:
    _slow(1).load(read(folder / "checkpoint.pt")).train(MORE, DONE)


@form(_saves_slow)
def state_around_the_optimizer_made_after_the_load(folder: Path) -> None:
    """The save came right after a pull, so the weights are the slow ones."""
    training = Training(seed=1).load(read(folder / "checkpoint.pt"))
    training.optimizer = Slow(training.optimizer)
    training.train(MORE, DONE)


def main() -> None:
    name, act, folder = sys.argv[1:]
    dist.init_process_group("gloo")
    FORMS.acts[name][act == "resume"](Path(folder))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
