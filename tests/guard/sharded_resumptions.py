"""Resumptions of ``resumptions`` that save with torch.distributed.checkpoint, or shard weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from tests.guard.saved_training import DONE, MORE, Act, Forms, Training, read, save

dcp: Any = torch.distributed.checkpoint
FORMS = Forms()
form = FORMS.form


def _saves_distributed(how: str, call: Any = None) -> Act:
    def act(folder: Path) -> None:
        training = Training(how=how).train(DONE)
        model, optimizer = get_state_dict(training.model, training.optimizer)
        future = (call or dcp.save)(
            {"model": model, "optimizer": optimizer}, checkpoint_id=folder / "dcp"
        )
        if future is not None and hasattr(future, "result"):
            future.result()

    return act


def _resumes_distributed(folder: Path, how: str) -> None:
    training = Training(seed=1, how=how)
    model, optimizer = get_state_dict(training.model, training.optimizer)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=folder / "dcp")
    set_state_dict(
        training.model,
        training.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    training.train(MORE, DONE)


@form(_saves_distributed("ddp"))
def distributed(folder: Path) -> None:
    _resumes_distributed(folder, "ddp")


@form(_saves_distributed("fsdp2"))
def sharded(folder: Path) -> None:
    _resumes_distributed(folder, "fsdp2")


@form(_saves_distributed("fsdp2", lambda *one, **other: dcp.async_save(*one, **other)))
def sharded_while_it_trains(folder: Path) -> None:
    _resumes_distributed(folder, "fsdp2")


@form(_saves_distributed("fsdp2"))
def sharded_to_copies(folder: Path) -> None:
    _resumes_distributed(folder, "ddp")


def _saves_whole(folder: Path) -> None:
    """Rank 0 writes what it gathered of the shards."""
    training = Training(how="fsdp2").train(DONE)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model, optimizer = get_state_dict(training.model, training.optimizer, options=options)
    save({"model": model, "optimizer": optimizer}, folder / "checkpoint.pt")


@form(_saves_whole)
def gathered_shards(folder: Path) -> None:
    training, state = Training(seed=1, how="fsdp2"), read(folder / "checkpoint.pt")
    set_state_dict(
        training.model,
        training.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(full_state_dict=True),
    )
    training.train(MORE, DONE)


@form(_saves_distributed("ddp"), is_right=False)
def rate_not_filled(folder: Path) -> None:
    """The load fills tensors, and the loop gives the optimizer its own rate again."""
    training = Training(seed=1)
    model, optimizer = get_state_dict(training.model, training.optimizer)
    rate = optimizer["param_groups"][0]["lr"]  # type: ignore[index, call-overload]
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=folder / "dcp")
    state["optimizer"]["param_groups"][0]["lr"] = rate
    set_state_dict(
        training.model,
        training.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    training.train(MORE, DONE)


@form(_saves_distributed("fsdp2"), is_right=False)
def shard_lost(folder: Path) -> None:
    """Rank 1 has other values of a weight after the load."""
    training = Training(seed=1, how="fsdp2")
    model, optimizer = get_state_dict(training.model, training.optimizer)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=folder / "dcp")
    set_state_dict(
        training.model, training.optimizer,
        model_state_dict=state["model"], optim_state_dict=state["optimizer"],
    )  # fmt: skip
    if dist.get_rank() == 1:
        with torch.no_grad():
            shard: Any = training.net.body.weight
            shard._local_tensor.add_(1)
    training.train(MORE, DONE)
