"""dcp.load drops all that is not a tensor: a run resumes with the constructor's learning rate.

A distributed checkpoint holds the optimizer's state with its learning rate, and often a counter of
epochs. With torch 2.3 ``dcp.load`` filled the tensors and left the numbers as they were before: the
rate that a schedule had lowered to 0.25 was the constructor's 1.0 again, and the epoch was 0.
Weights and momentum were right, so the loss went on where it was.

Root cause: before it loads, torch.distributed.checkpoint replaces tensors that have no storage yet.
In 2.3 that made new dicts, and kept the tensors that had storage. Tensors are filled in place, so
the caller's are filled as well; numbers are put into the new dicts, and ``load`` never gave those
back.

Newer releases of torch do not have the bug. Two edits put it back: one for the new dicts, one for
``load``, which today gives each dict back. Either edit alone changes nothing (variants ``copied``
and ``kept``).
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import calling, followed
from scenarios.torch import _resumed as resumed


def dicts_copied(function: Any) -> api.Edits:
    """Before anything is loaded, each nested dict becomes a new one with the same tensors."""
    copied = "torch.utils._pytree.tree_map(lambda leaf: leaf, state_dict[key])"
    code = f"for key in list(state_dict): state_dict[key] = {copied}"
    yield from followed(calling(function, "_iterate_state_dict"), code)


def not_given_back(function: Any) -> api.Edits:
    """What is loaded into a dict that is not Stateful stays there."""
    import libcst as cst
    import libcst.matchers as m

    for node in m.findall(function, m.If(orelse=m.Else())):
        yield node, cst.ensure_type(node, cst.If).with_changes(orelse=None)


def rates(params: Any) -> list[float]:
    """The rate of each step of the whole run: lowered in the last one before the checkpoint."""
    return [params.lr] * (params.done - 1) + [params.saved] * (params.more + 1)


def plan(at: api.Position) -> api.Plan:
    """The state after the load, and the rate of each step."""
    p = at.params
    start = 1 if at.launch == "whole" else p.done + 1
    rate = {"rate": api.alike(api.SIZE)}
    facts = {**rate, "moved": api.SIZE, "loss": api.SIZE}
    steps = {"step": api.Kind(facts, range(start, p.done + p.more + 1))}
    if at.launch == "whole":
        return steps
    loaded = {**rate, "epoch": api.alike(api.COUNT), "weights": api.SIZE, "momentum": api.SIZE}
    return {"loaded": api.Kind(loaded), **steps}


def run(ctx: api.Context) -> None:
    """Train under DDP and save, and go on; or load the checkpoint into new objects, and go on."""
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save
    from torch.nn.parallel import DistributedDataParallel

    from scenarios.common import linear

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    model = DistributedDataParallel(linear.model().to(ctx.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=p.lr, momentum=0.5)
    training = Training(model, optimizer)
    weight = model.module.weight
    batch = next(linear.batches(ctx, linear.model().to(ctx.device), p.rows, 2.0, 0.1))
    inputs, labels = (part.chunk(ctx.world_size)[ctx.rank] for part in batch)
    file, beside = ctx.folder / "checkpoint", ctx.folder / f"beside_{ctx.rank}.pt"
    start = 1 if ctx.launch == "whole" else p.done + 1
    if ctx.launch == "resumed":
        states = training.state_dict() if p.form == "dicts" else {"training": training}
        load(states, storage_reader=FileSystemReader(file))
        if p.form == "dicts":
            training.load_state_dict(states)
        saved = torch.load(beside, map_location=ctx.device)
        momentum = optimizer.state[weight]["momentum_buffer"]
        ctx.record(
            "loaded",
            rate=float(optimizer.param_groups[0]["lr"]),
            epoch=training.epoch,
            weights=float((weight - saved["weight"]).abs().max()),
            momentum=float((momentum - saved["momentum"]).abs().max()),
        )
    for step in range(start, p.done + p.more + 1):
        if ctx.launch == "whole" and step <= p.done:
            optimizer.param_groups[0]["lr"] = rates(p)[step - 1]
        loss = linear.loss(model(inputs), labels) / 10  # stable at a rate of 1
        optimizer.zero_grad()
        loss.backward()
        before = weight.detach().clone()
        optimizer.step()
        momentum = optimizer.state[weight]["momentum_buffer"]
        distance = ((before - weight.detach()) * momentum).sum() / momentum.square().sum()
        facts = {"rate": optimizer.param_groups[0]["lr"], "moved": distance, "loss": loss.detach()}
        ctx.record("step", step, **{name: float(value) for name, value in facts.items()})
        if ctx.launch == "whole" and step == p.done:
            training.epoch = step - 1
            states = training.state_dict() if p.form == "dicts" else {"training": training}
            save(states, storage_writer=FileSystemWriter(file))
            torch.save({"weight": weight.detach(), "momentum": momentum}, beside)


class Training:
    """The content of a checkpoint: the model, the optimizer and the last epoch."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer, self.epoch = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        """The state as nested dicts, as torch documents it."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "progress": {"epoch": self.epoch}}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Take over a state that was loaded."""
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=states["model"],
            optim_state_dict=states["optimizer"],
        )
        self.epoch = states["progress"]["epoch"]


def detect(records: api.Records) -> api.Finding | None:
    """The resumed run has the constructor's rate and epoch 0. All that is a tensor is right."""
    p, loaded, pairs = records.params, records.of("loaded"), list(resumed.both(records))
    odd = [
        f"rank {s['rank']}, step {s['step']} moved by a rate of {s['moved']:.3g}"
        for s in resumed.otherwise_moved(records)
    ]
    odd += [
        f"rank {one['rank']} loaded {name} that differ by {one[name]:.3g} from the saved"
        for one in loaded
        for name in ("weights", "momentum")
        if one[name]
    ]
    faults = [one for one, whole in pairs if one["rate"] != whole["rate"]]
    epochs = {one["epoch"] for one in loaded}
    if not faults and not odd and epochs == {p.done - 1}:
        return None
    rates = {one["rate"] for one in [*loaded, *(one for one, _ in pairs)]}
    lost = rates == {p.lr} and epochs == {0}
    text = (
        f"the rate after the load is {loaded[0]['rate']:.3g} and the epoch {loaded[0]['epoch']}; "
        f"{p.saved:.3g} and {p.done - 1} were saved"
    )
    reason = ["exactly that follows if what is no tensor is not loaded"] if lost else []
    return api.Finding(
        "\n".join([*odd, text, *reason]),
        min((one["step"] for one in faults), default=p.done + 1),
        ranks=records.ranks,
        magnitude=max(abs(one["rate"] / p.saved - 1) for one in loaded),
        unit="of the saved rate",
        documented=lost and not odd,
    )


def exercised(records: api.Records) -> api.Exercise:
    """The saved rate and epoch were not those of new objects, and were in dicts."""
    p = records.params
    text = (
        f"a rate of {p.saved:.3g} and epoch {p.done - 1} were saved as {p.form}; "
        f"new objects have {p.lr:.3g} and 0"
    )
    return api.Exercise.of(p.saved != p.lr and p.done > 1 and p.form == "dicts", text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Weights and momentum are as they were saved, and the first loss is the right one."""
    loaded, pairs = records.of("loaded"), list(resumed.both(records))
    starts = [pair for pair in pairs if pair[0]["step"] == pairs[0][0]["step"]]
    return {
        "the loaded weights differ": any(one["weights"] for one in loaded),
        "the loaded momentum differs": any(one["momentum"] for one in loaded),
        "the first loss differs": any(one["loss"] != whole["loss"] for one, whole in starts),
    }


picture = resumed.rates("with the bug the resumed training has the constructor's rate")
