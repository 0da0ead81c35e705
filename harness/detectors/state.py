"""The state after a load must be the state before the save: every parameter, on every rank.

BLOOM-176B's restarts in March 2022 lost a layer norm and overwrote half of the tied embedding, on
the last pipeline stage only. What found it was a dump of all parameters on all ranks before the
save and after the load, and a comparison of the two. Here each is one call, for a DeepSpeed engine
as for a plain torch model; fp32 master copies are included if DeepSpeed keeps them:

    dump_state("dumps/before", engine)  # on every rank, right before save_checkpoint

    changes = changes_since("dumps/before", engine)  # in new processes, right after the load
    assert not changes, changes[0]

Or dump both, and compare all ranks' files on any machine:

    python -m harness.detectors.state dumps/before dumps/after
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

GONE = "is gone"

MASTER = " (fp32)"
"""The ending of the name of a parameter's master copy."""


@dataclass(frozen=True)
class StateChange:
    """A tensor that is not bitwise equal to the earlier one."""

    name: str
    about: str
    """What is different, in words: the values, the shape, that it is gone or new."""
    greatest: float = float("nan")
    """The greatest absolute difference; nan if only NaNs differ, or if shapes do."""
    place: tuple[int, ...] = ()
    """The index at which it is greatest."""
    before: float = float("nan")
    """The value there, before."""
    after: float = float("nan")

    def __str__(self) -> str:
        return f"{self.name}: {self.about}"


def master_copy(parameter: Tensor) -> Tensor | None:
    """This rank's fp32 copy of a bf16 or fp16 parameter, in its shape if whole; None without one.

    DeepSpeed's BF16_Optimizer and ZeRO 1 and 2 leave it on the parameter, as ``_hp_mapping``. Where
    the optimizer is partitioned it is the fragment that this rank holds, flat.
    """
    mapping = getattr(parameter, "_hp_mapping", None)
    fragment: Tensor | None = None if mapping is None else mapping.hp_fragment
    if fragment is not None and fragment.numel() == parameter.numel():
        return fragment.detach().view(parameter.shape)
    return None if fragment is None else fragment.detach()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Tensor]:
    """Every parameter and buffer that this rank holds, by name, and the master copies: no copies.

    ``model`` is a module, or a wrapper around one that has it as ``module`` (DeepSpeedEngine, DDP);
    names are then the inner module's. A parameter that ZeRO 3 has partitioned is this rank's
    shard. With ``optimizer`` its moments come too, and the tensors that it updates where those are
    not the model's own, as ``optimizer.GROUP.INDEX``.
    """
    inner = getattr(model, "module", None)
    is_wrapper = [name for name, _ in model.named_children()] == ["module"]
    module = inner if isinstance(inner, nn.Module) and is_wrapper else model
    state: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        state[name] = getattr(parameter, "ds_tensor", parameter).detach()
        master = master_copy(parameter)
        if master is not None:
            state[name + MASTER] = master
    state |= {name: buffer.detach() for name, buffer in module.named_buffers()}
    return state | (_optimizer_state(optimizer, module) if optimizer is not None else {})


def state_changes(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[StateChange]:
    """The tensors that differ between two states, in the order of ``before``, then new ones."""
    changes = [_change(name, was, after.get(name)) for name, was in before.items()]
    new = [StateChange(name, "is new") for name in after if name not in before]
    return [change for change in changes if change is not None] + new


def dump_state(
    folder: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Path:
    """Write this rank's ``state_of`` to ``folder/rank_N.pt``, atomically; returns its path.

    Call it on every rank, with a folder that all can write to; it makes the folder. No collective.
    A dump takes as much room as the parameters and their master copies.
    """
    path = _file(Path(folder), _rank())
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}")
    # A view would be written with all of the flat buffer that it looks into.
    torch.save({n: t.cpu().clone() for n, t in state_of(model, optimizer).items()}, aside)
    os.replace(aside, path)
    return path


def changes_since(
    folder: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> list[StateChange]:
    """The changes in this rank's state since ``dump_state``; empty without changes.

    No collective: each rank reads its own file and gets its own result. Raises FileNotFoundError
    if this rank has no dump in ``folder``.
    """
    state = {name: tensor.cpu() for name, tensor in state_of(model, optimizer).items()}
    return state_changes(read_dump(folder, _rank()), state)


def read_dump(folder: str | os.PathLike[str], rank: int) -> dict[str, Tensor]:
    """What ``dump_state`` wrote on one rank: CPU tensors by name."""
    dump: dict[str, Tensor] = torch.load(_file(Path(folder), rank), weights_only=True)
    return dump


def dump_changes(
    before: str | os.PathLike[str], after: str | os.PathLike[str]
) -> dict[int, list[StateChange]]:
    """The changes between two dumps, by rank, for the ranks with changes.

    Raises ValueError unless both folders have dumps of the same ranks, and of at least one: a
    missing rank must not count as equal.
    """
    ranks, others = _ranks(Path(before)), _ranks(Path(after))
    if ranks != others or not ranks:
        raise ValueError(f"{before} has dumps of ranks {ranks}, {after} of {others}")
    changes = {r: state_changes(read_dump(before, r), read_dump(after, r)) for r in ranks}
    return {rank: of_rank for rank, of_rank in changes.items() if of_rank}


def _optimizer_state(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    state = {}
    for g, group in enumerate(optimizer.param_groups):
        for p, parameter in enumerate(group["params"]):
            name = names.get(id(parameter), f"optimizer.{g}.{p}")
            if id(parameter) not in names:
                state[name] = parameter.detach()
            moments = optimizer.state.get(parameter, {})
            state |= {f"{name} ({k})": v for k, v in moments.items() if isinstance(v, Tensor)}
    return state


def _change(name: str, was: Tensor, loaded: Tensor | None) -> StateChange | None:
    if loaded is None:
        return StateChange(name, GONE)
    if was.shape != loaded.shape or was.dtype != loaded.dtype:
        kinds = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (was, loaded)]
        return StateChange(name, f"was {kinds[0]}, is {kinds[1]}")
    if torch.equal(_bits(was), _bits(loaded)):
        return None
    distance = (was.double() - loaded.double()).abs().reshape(-1)
    index = int(distance.nan_to_num(nan=-1.0).argmax())
    greatest = float(distance[index])
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(index), was.shape))
    before, after = (float(t.reshape(-1)[index]) for t in (was, loaded))
    differing = int((_bits(was) != _bits(loaded)).reshape(was.numel(), -1).any(dim=1).sum())
    about = (
        f"{differing} of {was.numel()} values differ, by up to {greatest:.3g}: at {list(place)} "
        f"{before:.5g} before, {after:.5g} after"
    )
    return StateChange(name, about, greatest, place, before, after)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.pt"


def _ranks(folder: Path) -> list[int]:
    return sorted(int(file.stem.removeprefix("rank_")) for file in folder.glob("rank_*.pt"))


def main() -> int:
    """Print what differs between two dumps; the exit code is 1 if anything does."""
    if len(sys.argv) != 3:
        print("usage: python -m harness.detectors.state BEFORE AFTER", file=sys.stderr)
        return 2
    changes = dump_changes(*sys.argv[1:])
    for rank, of_rank in changes.items():
        for change in of_rank:
            print(f"rank {rank}: {change}")
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
