"""Runs a loop of ``loops/`` on forked ranks under guard: ``python -m tests.guard.engines REQUEST``.

The packages that run the training, such as DeepSpeed, are on this process's path. REQUEST is a file
with JSON. A fault begins after guard has started, as in a script.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import optimizer as optimizers

from harness.rank import guard
from harness.rank.guard.posting import budget
from harness.rank.guard.settings import Settings
from harness.rank.probe import script_shims
from harness.system.ports import number, reserve_port

FAULT_STEP = 6
LIMIT = 150.0
HUNG = 999
PATIENCE = 1.0
"""Seconds that a step waits for the choice of the next checked one."""


def main(file: str) -> None:
    request = json.loads(Path(file).read_text())
    folder = Path(file).parent
    torch.set_num_threads(1)
    script_shims.install(request["shims"], "cpu")
    with reserve_port() as keeper:
        ranks = {}
        for rank in range(request["ranks"]):
            child = os.fork()
            if not child:
                _become_rank(request, folder, rank, number(keeper))
            ranks[child] = rank
        (folder / "codes").write_text(json.dumps(_codes(ranks)))


def _codes(ranks: dict[int, int]) -> list[int]:
    codes: dict[int, int] = {}
    end = time.monotonic() + LIMIT
    while len(codes) < len(ranks) and time.monotonic() < end:
        for child, rank in ranks.items():
            if rank not in codes and (status := os.waitpid(child, os.WNOHANG))[0]:
                codes[rank] = os.waitstatus_to_exitcode(status[1])
        time.sleep(0.02)
        if any(codes.values()):
            end = min(end, time.monotonic() + 5)
    for child, rank in ranks.items():
        if rank not in codes:
            os.kill(child, 9)
            os.waitpid(child, 0)
    return [codes.get(rank, HUNG) for rank in sorted(ranks.values())]


def _become_rank(request: dict[str, Any], folder: Path, rank: int, port: int) -> None:
    log = os.open(folder / f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    count = str(request["ranks"])
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=count,
        LOCAL_WORLD_SIZE=count,
        LOCAL_SIZE=count,
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    guard.start(Settings(**request["settings"]))
    optimizers.register_optimizer_step_post_hook(_wait_for_rank_0)
    budget.LEAST_SECONDS = 0.0  # ranks wait for rank 0, however short a step is
    # On CPUs with several ranks the Trainer loads tensors to ``cpu:0``, which torch does not know.
    torch.serialization.register_package(
        0, lambda _: None, lambda storage, place: storage if place.startswith("cpu:") else None
    )
    if request["fault"]:
        FAULTS[request["fault"]](rank)
    sys.argv = [request["script"], *request["arguments"]]
    sys.path.insert(0, str(Path(request["script"]).parent))
    try:
        runpy.run_path(request["script"], run_name="__main__")
    except BaseException as error:
        if not isinstance(error, SystemExit):
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
        raise
    time.sleep(0.1)  # gloo's thread frees its last work
    sys.exit()


def _wait_for_rank_0(*_: Any) -> None:
    """Wait until rank 0 has chosen the next checked step, however fast tiny steps are."""
    end = time.monotonic() + PATIENCE
    turns = [training.turn for training in guard._guards[0].trainings]
    while any(turn.next_step is None for turn in turns) and time.monotonic() < end:
        time.sleep(0.002)


# -- faults --


def _flipped(rank: int) -> None:
    """At a step one bit of one weight of rank 1 flips."""
    steps = 0

    def flip(optimizer: Any, *_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == FAULT_STEP and rank == 1:
            parameter = _model_parameters()[0]
            kind = torch.int16 if parameter.element_size() == 2 else torch.int32
            with torch.no_grad():
                parameter.detach().view(kind).view(-1)[3] ^= 1

    optimizers.register_optimizer_step_post_hook(flip)


def _model_parameters() -> list[Any]:
    names = ("DeepSpeedEngine", "PipelineEngine", "DistributedDataParallel")
    wrappers = [one for one in gc.get_objects() if type(one).__name__ in names]
    return list(wrappers[0].parameters())


def _halved(rank: int) -> None:
    """The loss of each micro-batch is divided by 2 once more."""
    original = torch.Tensor.backward

    def backward(loss: Any, *arguments: Any, **keywords: Any) -> Any:
        return original(loss / 2, *arguments, **keywords)

    torch.Tensor.backward = backward  # type: ignore[assignment, method-assign]


def _unreduced_by_deepspeed(rank: int) -> None:
    """DeepSpeed's reductions leave out what other ranks have."""
    import deepspeed.comm as comm  # type: ignore[import-not-found]
    from deepspeed.runtime import engine  # type: ignore[import-not-found]
    from deepspeed.runtime.zero import stage3, stage_1_and_2  # type: ignore[import-not-found]

    def all_reduce(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        if tensor.numel() > 8:  # a norm is no gradient
            return tensor.mul_(dist.get_world_size())
        return comm.all_reduce(tensor, *arguments, **keywords)

    class Comm:
        def __getattr__(self, name: str) -> Any:
            return all_reduce if name in ("all_reduce", "reduce") else getattr(comm, name)

    engine.dist = stage_1_and_2.dist = Comm()
    original = stage3.reduce_scatter_coalesced

    def reduce_scatter(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        parts = original([torch.zeros_like(t) for t in tensors], *arguments, **keywords)
        world = dist.get_world_size()
        for tensor, part in zip(tensors, parts, strict=True):
            flat = tensor.detach().reshape(-1)[rank * -(-tensor.numel() // world) :]
            part[: min(len(part), len(flat))] = flat[: len(part)]
        return parts

    stage3.reduce_scatter_coalesced = reduce_scatter


def _after_reductions_of_deepspeed(change: Callable[[int, list[Any]], None]) -> None:
    """Call ``change`` with the number of each reduction of gradients, and what it gives."""
    from deepspeed.runtime.zero import stage3, stage_1_and_2

    numbers = itertools.count()
    scatter, reduce = stage3.reduce_scatter_coalesced, stage_1_and_2.dist.all_reduce

    def reduce_scatter(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        parts = scatter(tensors, *arguments, **keywords)
        change(next(numbers), parts)
        return parts

    def all_reduce(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        value = reduce(tensor, *arguments, **keywords)
        if tensor.numel() > 8:  # a norm is no gradient
            change(next(numbers), [tensor])
        return value

    class Comm:
        def __getattr__(self, name: str) -> Any:
            return all_reduce if name == "all_reduce" else getattr(comm, name)

    comm = stage_1_and_2.dist
    stage3.reduce_scatter_coalesced, stage_1_and_2.dist = reduce_scatter, Comm()


def _doubled_by_deepspeed(rank: int) -> None:
    """DeepSpeed's reductions give twice the mean."""

    def double(number: int, tensors: list[Any]) -> None:
        for tensor in tensors:
            tensor.mul_(2)

    _after_reductions_of_deepspeed(double)


def _lost_by_deepspeed(rank: int) -> None:
    """Each second reduction, that of the second micro-batch, gives nothing."""

    def lose(number: int, tensors: list[Any]) -> None:
        for tensor in tensors if number % 2 else ():
            tensor.zero_()

    _after_reductions_of_deepspeed(lose)


def _after_steps_of_zero(change: Callable[[Any], None]) -> None:
    """Call ``change`` with DeepSpeed's optimizer after each step from the third one on."""
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer  # type: ignore
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    def wrap(kind: Any) -> None:
        original, steps = kind.step, itertools.count(1)

        def step(zero: Any, *arguments: Any, **keywords: Any) -> Any:
            value = original(zero, *arguments, **keywords)
            if next(steps) >= 3:
                change(zero)
            return value

        kind.step = step

    for kind in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3, FP16_UnfusedOptimizer):
        wrap(kind)


def _stuck(rank: int) -> None:
    """One bit of one copy of a weight of rank 1 is wrong after each step of ZeRO 1 or 2. The next
    step would heal it."""

    def flip(zero: Any) -> None:
        flat = zero.bit16_groups_flat[0]
        kind = torch.int16 if flat.element_size() == 2 else torch.int32
        if rank == 1:
            flat.detach().view(kind)[3] ^= 1  # rank 0 steps this value

    _after_steps_of_zero(flip)


def _stuck_master(rank: int) -> None:
    """One bit of the copy in fp32 is wrong on rank 1, after each step of ZeRO."""

    def flip(zero: Any) -> None:
        names = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups")
        flat = next(getattr(zero, name)[0] for name in names if hasattr(zero, name))
        flat = flat[0] if isinstance(flat, list) else flat
        if rank == 1:
            flat.detach().reshape(-1).view(torch.int32)[3] ^= 1 << 20

    _after_steps_of_zero(flip)


def _lost_loss(rank: int) -> None:
    """From the third step on the loss is not finite, whatever its scale."""
    original, calls = torch.nn.functional.cross_entropy, itertools.count(1)

    def cross_entropy(*arguments: Any, **keywords: Any) -> Any:
        loss = original(*arguments, **keywords)
        return loss * torch.inf if next(calls) >= 3 else loss

    torch.nn.functional.cross_entropy = cross_entropy


def _nan(rank: int) -> None:
    """At a backward the loss of rank 1 is nan."""
    original, calls = torch.Tensor.backward, itertools.count(1)

    def backward(loss: Any, *arguments: Any, **keywords: Any) -> Any:
        is_lost = next(calls) == FAULT_STEP and rank == 1
        return original(loss * torch.nan if is_lost else loss, *arguments, **keywords)

    torch.Tensor.backward = backward  # type: ignore[assignment, method-assign]


def _infinite(rank: int) -> None:
    """From the third backward on a gradient is infinite, although the loss is finite."""
    original, calls = torch.Tensor.backward, itertools.count(1)

    def backward(loss: Any, *arguments: Any, **keywords: Any) -> Any:
        value = original(loss, *arguments, **keywords)
        if next(calls) >= 3:
            _model_parameters()[0].grad.fill_(torch.inf)
        return value

    torch.Tensor.backward = backward  # type: ignore[assignment, method-assign]


def _not_refreshed(rank: int) -> None:
    """After a load of the weights alone, DeepSpeed keeps the copies in fp32 from before."""
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer  # type: ignore[import-not-found]
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    for kind in (BF16_Optimizer, DeepSpeedZeroOptimizer):
        kind._restore_from_bit16_weights = lambda *_: None


def _state_not_loaded(rank: int) -> None:
    """No optimizer loads its state."""
    torch.optim.Optimizer.load_state_dict = lambda *_, **__: None  # type: ignore[method-assign]


def _weights_not_loaded(rank: int) -> None:
    """No module loads its weights."""
    keys = torch.nn.modules.module._IncompatibleKeys([], [])
    torch.nn.Module.load_state_dict = lambda *_, **__: keys  # type: ignore[method-assign]


def _schedule_not_loaded(rank: int) -> None:
    """No schedule of torch loads its state."""
    schedule: Any = torch.optim.lr_scheduler.LRScheduler
    kinds = [schedule, *schedule.__subclasses__()]
    for kind in [one for one in kinds if "load_state_dict" in vars(one)]:
        kind.load_state_dict = lambda *_, **__: None


def _untied(rank: int) -> None:
    """DeepSpeed's pipeline does not add the gradients of a weight that stages share."""
    from deepspeed.runtime.pipe.module import PipelineModule  # type: ignore[import-not-found]

    PipelineModule.get_tied_weights_and_groups = lambda module: []


def _untied_by_megatron(rank: int) -> None:
    """Megatron does not add the gradients of the embedding that stages share."""
    import importlib

    module: Any = importlib.import_module("megatron.core.distributed.finalize_model_grads")
    module._allreduce_word_embedding_grads = lambda *_, **__: None


def _unreduced_by_megatron(rank: int) -> None:
    """Megatron's gradient buffers are not reduced."""
    from megatron.core.distributed import param_and_grad_buffer as buffers  # type: ignore

    for name in ("start_grad_sync", "finish_grad_sync"):
        setattr(buffers._ParamAndGradBucketGroup, name, lambda *_, **__: None)


FAULTS: dict[str, Callable[[int], None]] = {
    "flipped": _flipped,
    "halved": _halved,
    "unreduced_by_deepspeed": _unreduced_by_deepspeed,
    "doubled_by_deepspeed": _doubled_by_deepspeed,
    "lost_by_deepspeed": _lost_by_deepspeed,
    "stuck": _stuck,
    "stuck_master": _stuck_master,
    "lost_loss": _lost_loss,
    "nan": _nan,
    "infinite": _infinite,
    "not_refreshed": _not_refreshed,
    "state_not_loaded": _state_not_loaded,
    "weights_not_loaded": _weights_not_loaded,
    "schedule_not_loaded": _schedule_not_loaded,
    "untied": _untied,
    "untied_by_megatron": _untied_by_megatron,
    "unreduced_by_megatron": _unreduced_by_megatron,
}


if __name__ == "__main__":
    main(sys.argv[1])
