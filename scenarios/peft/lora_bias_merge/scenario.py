"""Merging a LoRA adapter with lora_bias leaves out the scaling of its bias, and changes the model.

This affects users who train with ``lora_bias=True`` and a ``lora_alpha`` that is not ``r``, and
then merge the adapter. The merged model is not the one that was trained, and no error is raised:
here the loss is 1.110 after the training, and 1.169 after the merge.

Root cause: the forward pass multiplies what ``lora_B`` returns, with its bias, by alpha / r. The
merge multiplies only the product of the weights, and adds the bias as it is.
"""

from __future__ import annotations

from harness.bugs import api

TOLERANCE = 1e-4
"""How far (as a fraction of the adapter's effect) outputs may be from others to be the same."""


def plan(at: api.Position) -> api.Plan:
    """The losses; how far the merged model is from the trained one, and from one whose bias is not
    scaled; and the size of the bias."""
    sizes = {
        "from_trained": api.SIZE,
        "from_unscaled": api.SIZE,
        "bias": api.SIZE,
        "merged_loss": api.SIZE,
    }
    return {"merged": api.Kind({**sizes, "losses": api.many(api.SIZE, at.params.steps + 1)})}


def run(ctx: api.Context) -> None:
    """Train an adapter, merge it, and compare the outputs for the same rows."""
    import torch
    from peft import LoraConfig, get_peft_model
    from torch import nn
    from torch.nn.functional import mse_loss

    p = ctx.params
    options = {"lora_bias": True} if p.bias else {}
    base = nn.Sequential(nn.Linear(8, 8)).to(ctx.device)
    config = LoraConfig(r=p.rank, lora_alpha=p.alpha, target_modules=["0"], **options)
    model = get_peft_model(base, config)
    rows, labels = torch.randn(2, 16, 8, device=ctx.device)
    optimizer = torch.optim.Adam([w for w in model.parameters() if w.requires_grad], lr=1e-2)
    losses = []
    for _ in range(p.steps):
        optimizer.zero_grad()
        loss = mse_loss(model(rows), labels)
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        trained = model(rows)
        losses.append(float(mse_loss(trained, labels)))
        with model.disable_adapter():
            effect = float((trained - model(rows)).norm())
        layer = model.base_model.model[0]
        parameter = layer.lora_B["default"].bias
        bias = (
            torch.zeros(8, device=ctx.device) if parameter is None else parameter.detach().clone()
        )
        missing = (layer.scaling["default"] - 1) * bias
        if p.scaled:
            parameter.mul_(layer.scaling["default"])
        merged = model.merge_and_unload()(rows)
    ctx.record(
        "merged",
        from_trained=float((merged - trained).norm()) / effect,
        from_unscaled=float((merged - (trained - missing)).norm()) / effect,
        bias=float(bias.norm()),
        merged_loss=float(mse_loss(merged, labels)),
        losses=losses,
    )


def detect(records: api.Records) -> api.Finding | None:
    """The merged model is not the trained one, but the one whose bias is not scaled."""
    (merge,) = records.of("merged")
    if api.near(merge["from_trained"], 0, within=TOLERANCE):
        return None
    return api.Finding(
        f"the outputs of the merged model are {merge['from_trained']:.3g} of the adapter's effect "
        f"away; the loss is {merge['merged_loss']:.4f}, and was {merge['losses'][-1]:.4f}",
        ranks=records.ranks,
        parameters=("lora_B.bias",),
        magnitude=merge["from_trained"],
        unit="of the adapter's effect",
        documented=api.near(merge["from_unscaled"], 0, within=TOLERANCE),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The adapter has a bias that is not 0, and a scaling that is not 1."""
    p, (merge,) = records.params, records.of("merged")
    text = f"the bias has the norm {merge['bias']:.3g}; alpha is {p.alpha}, r is {p.rank}"
    return api.Exercise.of(merge["bias"] > 0 and p.alpha != p.rank, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The training is right, and the merged model is better than the one before the training."""
    (merge,) = records.of("merged")
    losses = merge["losses"]
    return {
        "the loss of the training rises": losses[-1] >= losses[0],
        "the merged model is no better than the base": merge["merged_loss"] >= losses[0],
    }


def _losses(records: api.Records) -> list[tuple[str, float]]:
    (merge,) = records.of("merged")
    start, *_, trained = merge["losses"]
    by_name = {"before the training": start, "trained": trained, "merged": merge["merged_loss"]}
    return list(by_name.items())


picture = api.bars(
    "The loss of the same rows",
    "with the bug the merged model has another loss than the trained one; without it, the same",
    _losses,
    "mean squared error",
)
