"""Has each parameter its gradient when a model is split over the ranks by its own plan?

``from_pretrained(tp_plan="auto")`` splits layers by tensor parallelism. The right gradient of a
part is that part of the gradient of the whole model: a checkpoint whose weights are the right
gradients is loaded with the same plan, so upstream's own code splits them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features
from scenarios.transformers._sizes import VOCABULARY

if TYPE_CHECKING:
    from torch import Tensor


COPIED = ("act_fn", "q_norm", "k_norm")
"""Modules of which each rank has a copy, although their inputs are split."""


@dataclass(frozen=True)
class SplitModel(features.Feature):
    """The oracle of scenarios in which each rank has only its own part of a gradient."""

    reason: str = (
        "the gradients of the ranks add up to the right one: each rank has a part of it alone"
    )
    checks: Sequence[api.Check] = ()
    modules: Sequence[str] = ()
    """The modules that the bug is about: the gradient of one of them must be wrong. Others may be
    wrong as well, in the same way."""

    def plan(self, at: api.Position) -> api.Plan:
        """One step, with the gradient of each parameter, which the ranks do not share."""
        return {"step": api.Kind(features.Step.shapes(gradients=features.COMPARED), (1,))}

    def documented(self, step: features.Step, records: api.Records) -> bool:
        """Some gradients are not those without the feature, but those that the fault gives."""
        about = any(set(self.modules) & set(name.split(".")) for name in step.off)
        return (about or not step.off) and super().documented(step, records)


def differentiate(ctx: api.Context, make: Callable[[], Any]) -> None:
    """Record one backward pass of a split model, beside that of the whole one.

    ``make`` makes the whole model.
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group(ctx.lane.backend)
    torch.manual_seed(ctx.seed)
    model = make().to(ctx.device).eval()
    draw = torch.Generator().manual_seed(ctx.seed)
    size = (ctx.params.rows, ctx.params.length)
    tokens = torch.randint(3, VOCABULARY, size, generator=draw).to(ctx.device)
    split = _split(ctx, model, "weights")
    whole_gradients = features.of_losses(model, [model(input_ids=tokens, labels=tokens).loss])
    loss = split(input_ids=tokens, labels=tokens).loss
    loss.backward()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(whole_gradients[name])
    expected = {
        n: _whole(p.detach()) for n, p in _split(ctx, model, "gradients").named_parameters()
    }
    actual = {n: _whole(g) for n, g in features.gradients(split).items()}
    documented = {
        name: expected[name] - _others(part)
        if set(COPIED) & set(name.split("."))
        else expected[name]
        for name, part in actual.items()
    }
    features.record(ctx, 1, loss, actual, expected, documented)


def several(records: api.Records) -> api.Exercise:
    """The model was split over several ranks."""
    ranks = len(records.ranks)
    return api.Exercise.of(ranks > 1, f"split over {ranks} ranks", "there was one rank")


def _split(ctx: api.Context, model: Any, name: str) -> Any:
    """Save the model, and load it in parts; only the first rank writes."""
    import torch.distributed as dist

    folder = ctx.folder / name
    if ctx.rank == 0:
        model.save_pretrained(folder)
    dist.barrier()
    split_model = type(model).from_pretrained(folder, **_by_plan(ctx.world_size))
    return split_model.to(ctx.device).eval()  # with one rank, it stays on the CPU


def _by_plan(ranks: int) -> dict[str, Any]:
    """The arguments by which a release's ``from_pretrained`` splits tensors by the model's plan."""
    import importlib.util

    if not importlib.util.find_spec("transformers.distributed"):  # before 4.54
        return {"tp_plan": "auto"}
    from transformers.distributed import DistributedConfig

    if "tp_plan" in inspect.signature(DistributedConfig).parameters:
        return {"distributed_config": DistributedConfig(tp_size=ranks, tp_plan="auto")}
    return {"tp_plan": "auto"}


def _whole(tensor: Any) -> Tensor:
    """A DTensor, gathered from all ranks; another tensor as it is."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def _others(mine: Tensor) -> Tensor:
    """The sum of the other ranks' tensors."""
    import torch.distributed as dist

    total = mine.clone()
    dist.all_reduce(total)
    return total - mine
