"""dcp.async_save of tensors on the CPU copies nothing: the file holds the weights of a later step.

``async_save`` must copy the state before it returns, so that training can go on while a thread
writes. In torch 2.6 it copied tensors only from a GPU. Tensors on the CPU, as with CPU offload or
training on a CPU, were given to the thread without a copy. The checkpoint of step N then contains
the weights as they are when the thread writes: those of step N + 1 or later, or a mixture.

Root cause: the stager moves the state to the CPU with ``_offload_state_dict_to_cpu``. This function
returns a tensor that is already on the CPU as it is.

Newer releases of torch copy, and the edit puts 2.6's stager back. In 2.13.0 that stager is used if
a ``FileSystemWriter`` is passed as ``storage_writer``. With ``checkpoint_id`` alone another stager
copies, so that path is right (variant ``by_id``); in 2.6 both paths had the bug.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

from harness.bugs import api


def only_moved(function: Any) -> api.Edits:
    """The new state has the tensors that are on the CPU as they are; nothing is copied into it."""
    import libcst as cst
    import libcst.matchers as m

    offload = "torch.distributed._state_dict_utils._offload_state_dict_to_cpu"
    code = f"return {offload}(state_dict, type_check=self.type_check)"
    for node in m.findall(function, m.If(test=m.UnaryOperation(m.Not()))):
        block = cst.IndentedBlock([cst.parse_statement(code)])
        yield node, cst.ensure_type(node, cst.If).with_changes(body=block)


def plan(at: api.Position) -> api.Plan:
    """How far each checkpoint is from the weights of its step, and from the next step's."""
    facts = {
        "device": api.exactly("cpu"),
        "waited": api.FLAG,
        "own": api.SIZE,
        "later": api.SIZE,
        "moved": api.SIZE,
    }
    return {"saved": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a linear map on the CPU under DDP, save after each step, and read all checkpoints."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from scenarios.common import linear
    from scenarios.torch.dcp_async_late.saving import Saves

    p = ctx.params
    gpu = ctx.device.type == "cuda"
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else ctx.lane.backend)
    saves = Saves(ctx.folder, p.path)
    model = linear.model()
    data = linear.batches(replace(ctx, device=torch.device("cpu")), model, p.rows, 2.0, 0.1)
    module = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=p.lr)
    weights: list[Any] = []
    for step in api.each(p.steps + 1):
        inputs, labels = (part.chunk(ctx.world_size)[ctx.rank] for part in next(data))
        optimizer.zero_grad()
        linear.loss(module(inputs), labels).backward()
        optimizer.step()
        saves.finish()
        weights.append(model.weight.detach().clone())
        if step <= p.steps:
            saves.start(step, model)
        if p.wait:
            saves.finish()
    for step, (at_save, later) in enumerate(pairwise(weights), 1):
        loaded = saves.read(step, model)
        ctx.record(
            "saved",
            step,
            device=at_save.device.type,
            waited=p.wait,
            own=float((loaded - at_save).abs().max()),
            later=float((loaded - later).abs().max()),
            moved=float((later - at_save).abs().max()),
        )


def detect(records: api.Records) -> api.Finding | None:
    """A checkpoint holds other weights than those of its step: those of the next one."""
    saved = records.of("saved")
    faults = [one for one in saved if one["own"]]
    if not faults:
        return None
    late = all(not one["later"] and one["own"] == one["moved"] for one in saved)
    fault, greatest = faults[0], max(one["own"] for one in faults)
    lines = [
        f"rank {fault['rank']}: the checkpoint of step {fault['step']} differs from its weights by "
        f"{fault['own']:.3g}, and from those of the next step by {fault['later']:.3g}"
    ]
    if late:
        lines.append(f"all {len(saved)} checkpoints hold exactly the weights of the next step")
    ranks = tuple(sorted({one["rank"] for one in faults}))
    return api.Finding(
        "\n".join(lines),
        min(one["step"] for one in faults),
        ranks=ranks,
        magnitude=greatest,
        unit="from the weights that were saved",
        documented=late,
    )


def exercised(records: api.Records) -> api.Exercise:
    """Weights on the CPU changed after async_save returned, and before the file was written."""
    saved = records.of("saved")
    has_moved = all(one["moved"] for one in saved) and not any(one["waited"] for one in saved)
    when = "after" if saved[0]["waited"] else "before"
    text = f"the weights moved by up to {max(one['moved'] for one in saved):.3g} {when} each file "
    return api.Exercise.of(has_moved, f"{text}was written")


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """All ranks read the same file, and each file is another one."""
    by_step: dict[int, set[float]] = {}
    for record in records.of("saved"):
        by_step.setdefault(record["step"], set()).add(record["own"])
    values = [min(found) for found in by_step.values()]
    return {
        "the ranks load different weights": any(len(found) > 1 for found in by_step.values()),
        "a checkpoint is not finite": not all(map(math.isfinite, values)),
    }


picture = api.bars(
    "How far a checkpoint is from the weights of its step",
    "with the bug each checkpoint holds the weights of the next step",
    lambda records: ((f"step {s['step']}", float(s["own"])) for s in records.of("saved", 0)),
    "greatest difference",
)
