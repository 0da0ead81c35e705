"""NeMo Automodel multiplies the gradient of a classifier by the ranks and the micro-batches.

This affects users of the recipe for sequence classification, with any number of ranks and
micro-batches but one of each: 8 ranks with 4 micro-batches apply 32 times the gradient. The
default clipping of the gradient norm hides it, because it then cuts each step to the same length,
whatever its gradient is. Adam hides the factor, too, but not its change: a run that is continued on
another number of ranks has moments of another scale. The reported loss is multiplied by the ranks.

Root cause: the recipe multiplies each micro-batch's mean loss by the number of ranks, as the other
recipes do. Those divide by the labels of all ranks and micro-batches before, and this one does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from harness.bugs import api
from scenarios.common import applied, usual_checks

WORDS, LENGTH, WIDTH, CLASSES = 64, 6, 16, 3


def factor(records: api.Records) -> int:
    """The ranks, times the micro-batches of each."""
    return len(records.ranks) * int(records.params.accumulation)


def multiplied(step: applied.Step, records: api.Records) -> bool:
    """Each step applies plain torch's gradient times the ranks and the micro-batches."""
    return step.times(factor(records))


oracle = applied.Applied(
    applied.Step,
    multiplied,
    parts=lambda at: at.params.accumulation * at.world_size,
    facts=lambda at: {"loss": api.NUMBER},
    replicas=True,
    checks=[usual_checks.loss_ends_higher],
)


def run(ctx: api.Context) -> None:
    """Call the recipe's own step on a small classifier; compare it with plain torch."""
    import torch
    import torch.distributed as dist
    from nemo_automodel.recipes.llm import train_seq_cls
    from torch import Tensor, nn

    from scenarios.common import plain_torch

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
            rows = self.table(input_ids) * attention_mask[..., None]
            return self.head(rows.mean(1))

    def loss(weights: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        inputs = (batch["input_ids"], batch["attention_mask"])
        logits = torch.func.functional_call(model, dict(weights), inputs)
        return nn.functional.cross_entropy(logits, batch["labels"])

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    torch.manual_seed(ctx.seed)
    model = Classifier().to(ctx.device)
    ddp = nn.parallel.DistributedDataParallel(model)
    recipe = without_setup(ctx, train_seq_cls.TrainFinetuneRecipeForSequenceClassification, ddp)
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    shape = (ctx.world_size * p.accumulation, p.batch)
    for step in api.each(p.steps):
        ids = torch.randint(WORDS, (*shape, LENGTH), generator=generator).to(ctx.device)
        classes = torch.randint(CLASSES, shape, generator=generator).to(ctx.device)
        batches = [
            {"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": labels}
            for rows, labels in zip(ids, classes, strict=True)
        ]
        update = plain_torch.Update(loss, model, *batches)
        mine = batches[ctx.rank * p.accumulation :][: p.accumulation]
        metrics = recipe._run_train_optim_step(mine).metrics
        ctx.record("step", step, loss=float(metrics["loss"]), **update.facts(p.lr))


def without_setup(ctx: api.Context, recipe_class: Any, model: Any) -> Any:
    """The recipe without its setup from a file: with what its step reads of it."""
    import torch
    import torch.distributed as dist

    def reduced(tensor: Any, op: Any = dist.ReduceOp.SUM, **_: Any) -> Any:
        dist.all_reduce(tensor := tensor.to(ctx.device), op=op)
        return tensor

    recipe = object.__new__(recipe_class)
    recipe.__dict__.update(
        model_parts=[model],
        optimizer=[torch.optim.SGD(model.parameters(), lr=ctx.params.lr)],
        lr_scheduler=None,
        max_grad_norm=1e9,
        device_mesh=None,
        loss_fn=torch.nn.CrossEntropyLoss(),
        dist_env=SimpleNamespace(device=ctx.device, is_main=ctx.rank == 0),
        step_scheduler=SimpleNamespace(step=0, epoch=0),
        timestamp=0.0,
        pp_enabled=False,
        mfu_calculator=None,
        _get_dp_group_size=lambda include_cp=False: ctx.world_size,
        _get_cp_group_size=lambda: 1,
        _get_pp_rank=lambda: 0,
        _dp_allreduce=reduced,
    )
    return recipe


def exercised(records: api.Records) -> api.Exercise:
    """Several micro-batches, of one rank or of several, made a step."""
    count = factor(records)
    return api.Exercise.of(count > 1, f"{count} micro-batches of all ranks made a step")
