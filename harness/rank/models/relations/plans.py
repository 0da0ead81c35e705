"""Relations for a model that its own plan splits over 2 ranks.

Upstream's code splits the expected gradients: a checkpoint that has the gradients as its weights is
loaded with the same plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed as dist

from harness.rank.compare import Named
from harness.rank.models.answer import NoAnswer
from harness.rank.models.judging import arrays, require_equal, rounding
from harness.rank.models.relations.checkpoints import loaded
from harness.rank.models.relations.replicas import whole
from harness.rank.models.subject import SEEDS, Subject, gradient, logits, logits_of, loss_of, run
from harness.system.text import count

RANKS = 2


def tensor_parallel(subject: Subject) -> str | None:
    """A model split by its plan has the same logits and the same gradient of each parameter."""
    if not _plan(subject.module, "tp"):
        raise NoAnswer("the model has no plan for tensor parallelism")
    cls, parameters = _distributed()  # from_pretrained takes what they have in this release
    how: dict[str, Any] = {"tp_plan": "auto"}
    if "tp_plan" in parameters:
        how = {"distributed_config": cls(tp_size=RANKS, tp_plan="auto")}
    return _compare(subject, "tp", how)


def expert_parallel(subject: Subject) -> str | None:
    """A model with experts on 2 ranks has the same logits and gradients of all parameters."""
    if not _plan(subject.module, "ep"):
        raise NoAnswer("the model has no plan for expert parallelism")
    cls, parameters = _distributed()
    if "ep_size" in parameters:
        how = {"distributed_config": cls(tp_size=RANKS, ep_size=RANKS)}
    else:
        how = {"tp_plan": "auto", "distributed_config": cls(enable_expert_parallel=True)}
    return _compare(subject, "ep", how)


def _plan(module: Any, kind: str) -> Any:
    plan = getattr(module, f"_{kind}_plan", None)
    return plan or getattr(getattr(module, "config", None), f"base_model_{kind}_plan", None)


def _distributed() -> tuple[Any, Mapping[str, Any]]:
    """The class DistributedConfig of transformers, and its parameters."""
    from transformers.distributed import DistributedConfig  # type: ignore[import-not-found]

    return DistributedConfig, inspect.signature(DistributedConfig).parameters


def _compare(subject: Subject, kind: str, how: Mapping[str, Any]) -> str:
    module, inputs = subject.module, subject.loss_inputs()
    outputs, of_outputs = subject.measured(lambda: {"logits": logits(module, inputs)}, SEEDS[:1])
    expected, allowed = subject.measured(lambda: gradient(module, inputs), SEEDS[:1])
    split = _split(subject, f"{kind}-weights", how)
    output = run(split, inputs)
    actual = {"logits": whole(logits_of(output))}
    require_equal(arrays(actual), outputs, of_outputs, "the output:")
    loss_of(output).backward()
    _become(module, expected)
    parts = _split(subject, f"{kind}-gradients", how)
    gradients = {n: whole(p.grad) for n, p in split.named_parameters() if p.grad is not None}
    shards = arrays({n: whole(p) for n, p in parts.named_parameters() if n in expected})
    floor = rounding(shards, [])
    limits = {name: max(floor[name], allowed[name]) for name in shards}
    phrase = "the logits are right, and the gradient"
    require_equal(arrays(gradients), shards, limits, phrase)
    return count(len(expected), "gradient")


def _split(subject: Subject, name: str, how: Mapping[str, Any]) -> Any:
    """Save the model and load its parts. Only the first rank writes, as in upstream's code."""
    folder = subject.folder / name
    if dist.get_rank() == 0:
        subject.module.save_pretrained(folder)
    dist.barrier()
    return loaded(subject, folder, **how)


def _become(module: Any, values: Named) -> None:
    """Replace the weights by these values; by zeros where a value is missing."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(
                torch.from_numpy(values[name].copy()) if name in values else torch.zeros_like(p)
            )
