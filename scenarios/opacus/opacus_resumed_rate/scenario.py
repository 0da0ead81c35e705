"""After a resume, a scheduler no longer changes the learning rate of Opacus' optimizer.

This affected private trainings with a schedule that were stopped and resumed. The scheduler goes on
and reports the right rates, also in ``optimizer.param_groups``, so a log shows nothing. But all
steps after the resume are taken at the rate of the checkpoint. A run that is resumed early, during
its warmup, trains at a fraction of its rate; one that is resumed late never decays.

Root cause: ``DPOptimizer`` wraps the user's optimizer, and kept references to its ``param_groups``
and its ``state``. ``load_state_dict`` of the user's optimizer makes new ones. The references still
pointed to the old groups: the scheduler changed these, and the steps used the new ones. Since 1.5.2
they are properties that ask the user's optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import continued


def constant(
    steps: Sequence[api.Record], whole: Sequence[api.Record], records: api.Records
) -> bool:
    """The scheduler reports the right rates after the resume, but all steps are taken at the rate
    of the checkpoint."""
    expected = whole[records.params.done :]
    return all(
        api.near(step["rate"], expected[0]["rate"], share=1e-4)
        and api.near(step["reported"], other["reported"], share=1e-6)
        for step, other in zip(steps, expected, strict=True)
    )


oracle = continued.Continued(
    constant,
    facts=lambda at: {"rate": api.SIZE, "reported": api.SIZE},
    fact="rate",
    noun="learning rate",
    share=1e-4,
    checks={"reported": "the learning rate that the scheduler reports"},
)


def run(ctx: api.Context) -> None:
    """Train with Opacus and save, and go on; or load the checkpoint into new objects, and go on."""
    import torch

    p, file = ctx.params, ctx.folder / "checkpoint.pt"
    model, optimizer, rows, labels = _private(ctx)
    wrapped = optimizer if p.scheduled == "wrapper" else optimizer.original_optimizer
    scheduler: Any = torch.optim.lr_scheduler.LambdaLR(wrapped, lambda done: 1 / (1 + done))
    states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if ctx.launch == continued.RESUMED:
        for name, state in torch.load(file, map_location=ctx.device, weights_only=True).items():
            states[name].load_state_dict(state)
    weight = next(model.parameters())
    for step in continued.steps(ctx):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(rows), labels).backward()
        before = weight.detach().clone()
        optimizer.step()
        gradient = weight.grad
        distance = ((before - weight.detach()) * gradient).sum() / gradient.square().sum()
        ctx.record("step", step, rate=float(distance), reported=scheduler.get_last_lr()[0])
        scheduler.step()
        if ctx.launch == continued.WHOLE and step == p.done:
            torch.save({name: part.state_dict() for name, part in states.items()}, file)


def _private(ctx: api.Context) -> tuple[Any, Any, Any, Any]:
    """A model and its optimizer as Opacus makes them private, without noise, and the rows."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(ctx.seed)
    rows, labels = torch.randn(8, 4), torch.randn(8, 1)
    linear = torch.nn.Linear(4, 1, bias=False)
    model, optimizer, _ = PrivacyEngine().make_private(
        module=linear.to(ctx.device),
        optimizer=torch.optim.SGD(linear.parameters(), lr=ctx.params.lr),
        data_loader=DataLoader(TensorDataset(rows, labels), batch_size=8),
        noise_multiplier=0.0,
        max_grad_norm=ctx.params.clipping,
        poisson_sampling=False,
    )
    return model, optimizer, rows.to(ctx.device), labels.to(ctx.device)


picture = oracle.picture
