"""Relations for data parallelism: each of 2 ranks has half of the rows."""

from __future__ import annotations

from typing import Any

from harness.rank.compare import Named, Spread
from harness.rank.models.answer import NoAnswer, Wrong
from harness.rank.models.judging import arrays, require_equal
from harness.rank.models.subject import SEEDS, Subject, gradient, loss_of, rows, run

MEAN = "the mean gradient of both ranks"


def ddp(subject: Subject) -> str | None:
    """DistributedDataParallel gives the mean of both ranks' gradients."""
    from torch.nn.parallel import DistributedDataParallel

    mine, expected, allowed = halves(subject)
    module = DistributedDataParallel(subject.module)
    loss_of(run(module, mine)).backward()
    actual = {n: p.grad for n, p in module.module.named_parameters() if p.grad is not None}
    run(module, mine)  # raises if a parameter got no gradient, and its bucket was not reduced
    require_mean(actual, expected, allowed)
    return None


def fsdp2(subject: Subject) -> str | None:
    """``fully_shard`` of each layer and of the model gives the mean of both ranks' gradients."""
    import torch
    from torch.distributed.fsdp import fully_shard

    mine, expected, allowed = halves(subject)
    module = subject.module
    names = set(getattr(module, "_no_split_modules", None) or ())
    layers = [part for part in module.modules() if type(part).__name__ in names]
    lists = [part for part in module.modules() if isinstance(part, torch.nn.ModuleList)]
    for layer in layers or [layer for each in lists[:1] for layer in each]:
        fully_shard(layer)
    fully_shard(module)
    loss_of(run(module, mine)).backward()
    actual = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    require_mean({name: whole(value) for name, value in actual.items()}, expected, allowed)
    return None


def whole(tensor: Any) -> Any:
    """The complete tensor, also if it is split over the ranks."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def halves(subject: Subject) -> tuple[dict[str, Any], Named, Spread]:
    """This rank's half of the batch, the mean gradient of both halves, and its rounding."""
    from torch import distributed as dist

    inputs = subject.loss_inputs()
    half = len(inputs["labels"]) // 2
    if not half:
        raise NoAnswer("a batch of one row cannot be split")
    parts = [rows(inputs, slice(0, half)), rows(inputs, slice(half, 2 * half))]

    def mean() -> Named:
        return {n: g / 2 for n, g in gradient(subject.module, *parts).items()}

    return parts[dist.get_rank()], *subject.measured(mean, SEEDS[:1])


def require_mean(actual: dict[str, Any], expected: Named, allowed: Spread) -> None:
    """Raise Wrong if a gradient is missing, or is not the mean."""
    missing = sorted(name for name in expected if name not in actual and expected[name].any())
    if missing:
        raise Wrong(f"{missing[0]} gets no gradient ({len(missing)} of {len(expected)} parameters)")
    require_equal(arrays(actual), expected, allowed, MEAN)
