"""set_optimizer_state_dict drops the state of weights that are frozen at the load.

Some trainings freeze a part of a model for a while: a generator while the critic learns, a backbone
during a warmup, layers that are unfrozen one by one. If such a training is resumed while a part is
frozen, the loaded optimizer has no state for that part, although the checkpoint has it. Once the
part is unfrozen, Adam begins anew there: its count is 0, its moments are lost, and each first
update is a full learning rate long. The weights and the first losses are right.

Root cause: ``_split_optim_state_dict`` picks the state of each weight from the checkpoint only if
the weight requires a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import continued


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.pause >= params.more:
        raise ValueError("pause must be less than more: the layer is unfrozen after it")


def by_checkpoint(function: Any) -> api.Edits:
    """The state of a weight is loaded if the checkpoint has it."""
    import libcst as cst
    import libcst.matchers as m

    for node in m.findall(function, m.If(m.Attribute(attr=m.Name("requires_grad")))):
        test = cst.parse_expression("param.requires_grad or fqn in optim_state_dict['state']")
        yield node, cst.ensure_type(node, cst.If).with_changes(test=test)


def begun_anew(
    steps: Sequence[api.Record], whole: Sequence[api.Record], records: api.Records
) -> bool:
    """After the resume Adam has forgotten the steps of the frozen layer, but not those of the other
    layer. While the layer is frozen, each loss is right."""
    p = records.params
    pairs = list(zip(steps, whole[p.done :], strict=True))
    return all(
        step["count"] == expected["count"] - p.done and step["other"] == expected["other"]
        for step, expected in pairs
    ) and all(step["loss"] == expected["loss"] for step, expected in pairs[: p.pause])


oracle = continued.Continued(
    begun_anew,
    facts=lambda at: {
        "loss": api.NUMBER,
        "count": api.COUNT,
        "other": api.COUNT,
        "moved": api.SIZE,
    },
    fact="moved",
    noun="mean update of a weight of the first layer",
    unit="learning rates",
    checks={"other": "Adam's count of the other layer"},
)


def run(ctx: api.Context) -> None:
    """Train two layers with Adam, save, and go on with the first one frozen for some steps; or
    load, and go on like this."""
    import torch
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    from scenarios.common import linear

    p = ctx.params
    layer, head = nn.Linear(linear.FEATURES, 8), nn.Linear(8, linear.OUTPUTS)
    model = nn.Sequential(layer, nn.Tanh(), head)
    model.to(ctx.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=p.lr)
    file, layer_weight, head_weight = ctx.folder / "saved.pt", layer.weight, head.weight
    data = linear.batches(ctx, linear.model().to(ctx.device), p.rows, distance=5.0, noise=0.1)
    rows = [next(data) for _ in range(p.done + p.more)]
    if ctx.launch == continued.RESUMED:
        layer.requires_grad_(p.frozen != "before")
        weights, state = torch.load(file, map_location=ctx.device)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    for step in continued.steps(ctx):
        paused = p.done < step <= p.done + p.pause
        layer.requires_grad_(not paused or p.frozen == "never")
        inputs, labels = rows[step - 1]
        loss = linear.loss(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        before = layer_weight.detach().clone()
        optimizer.step()
        ctx.record(
            "step",
            step,
            loss=float(loss.detach()),
            count=_count(optimizer, layer_weight),
            other=_count(optimizer, head_weight),
            moved=float((layer_weight.detach() - before).abs().mean()) / p.lr,
        )
        if ctx.launch == continued.WHOLE and step == p.done:
            torch.save(get_state_dict(model, optimizer), file)


def _count(optimizer: Any, weight: Any) -> int:
    """The steps that Adam has counted for a weight."""
    return int(optimizer.state[weight]["step"]) if weight in optimizer.state else 0
