"""With BERT's heads and many others, the Trainer's eval_loss is multiplied by the number of ranks.

transformers 5.0.0 and later are affected, including 5.23.0. On two ranks ``trainer.evaluate()``
gives an ``eval_loss`` that is twice the mean loss of the same rows; on four ranks it is four times
that mean. Accuracy and other metrics are right, because they come from the logits. Early stopping
and the choice of the best checkpoint by the loss are right within one run, but losses of runs on
different numbers of GPUs cannot be compared, and a perplexity that is computed from the loss is
wrong.

Root cause: the same as in ``heads_gas_ranks``. ``Trainer.__init__`` takes a ``forward`` with
``**kwargs`` for one that divides the loss by the number of items on all ranks. So ``compute_loss``
multiplies it by the number of ranks, also in an evaluation. These heads return a mean. It needs
``average_tokens_across_devices=True``, which is the default since 4.54.0.

We know of no report about these heads. Issue 35078 is the same symptom in 4.46.3, for LLaMA with
``average_tokens_across_devices=True``.
"""

from __future__ import annotations

from harness.bugs import api

ROWS = 16
"""Rows of the evaluation; each rank gets as many as every other."""


def plan(at: api.Position) -> api.Plan:
    """The loss of the Trainer, and that of plain torch on all rows; the same on all ranks."""
    loss = api.alike(api.NUMBER)
    return {"evaluation": api.Kind({"loss": loss, "reference": loss})}


def run(ctx: api.Context) -> None:
    """Evaluate a tiny model with the Trainer, and with plain torch."""
    import torch
    from transformers import Trainer

    from scenarios.common.hf_trainer import arguments
    from scenarios.transformers import _heads as heads

    head = ctx.params.head
    torch.manual_seed(ctx.seed)
    model = heads.MODELS[head]().to(ctx.device).eval()
    rows = heads.dataset(head, ROWS, ctx.seed)
    size = ROWS // 2 // ctx.world_size
    settings = arguments(ctx, ctx.folder / "out", per_device_eval_batch_size=size)
    with ctx.phase("evaluate"):
        metrics = Trainer(model=model, args=settings, eval_dataset=rows).evaluate()
    mean = heads.mean_loss(model, head, rows)
    ctx.record("evaluation", loss=float(metrics["eval_loss"]), reference=mean)


def detect(records: api.Records) -> api.Finding | None:
    """The evaluation loss is the mean loss times the number of ranks."""
    evaluation = records.of("evaluation")[0]
    ratio = evaluation["loss"] / evaluation["reference"]
    if api.near(ratio, 1, share=1e-3):
        return None
    return api.Finding(
        f"eval_loss is {evaluation['loss']:.5g}, {ratio:.4g} times the mean loss of the same rows, "
        f"{evaluation['reference']:.5g}",
        ranks=records.ranks,
        magnitude=abs(ratio - 1),
        unit="of the right loss",
        documented=api.near(ratio, len(records.ranks), share=1e-3),
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """All ranks report the same loss, so comparing them misses the bug."""
    losses = {evaluation["loss"] for evaluation in records.of("evaluation")}
    return {"the ranks report different losses": len(losses) > 1}


picture = api.bars(
    "The evaluation loss",
    "with the bug it is the mean loss times the number of ranks",
    lambda records: (("", one["loss"] / one["reference"]) for one in records.of("evaluation")[:1]),
    "times the mean loss",
    {"right": 1.0},
)
