"""add_weighted_adapter gives a wrong result for adapters with use_rslora or lora_bias.

If one adapter is combined with weight 1, the result must be that adapter. With plain LoRA it is.
With ``use_rslora`` the effect of the result is sqrt(r) times too large, and with ``lora_bias`` its
biases are missing. No error is raised, and the combined adapter is used or merged like any other.
This affects users who combine adapters of these kinds. The report also names DoRA and KaSA, which
are not run here.

Root cause: the new adapter has the rank as its alpha, so that its scaling is 1, but it keeps
``use_rslora``, which divides alpha by sqrt(r) instead of r. Only the weights of ``lora_A`` and
``lora_B`` are combined: a bias stays 0. Our remedy is for ``use_rslora``, and does what pull
request 3449 does. As of 0.21.2 no release contains that pull request.
"""

from __future__ import annotations

from harness.bugs import api

TOLERANCE = 1e-4
"""How far (as a fraction of the right effect) an effect may be from another to be the same."""


def plain_scaling(function: object) -> api.Edits:
    """The configuration of the combined adapter is made with ``use_rslora=False``."""
    from scenarios.common.call_edits import with_keyword

    yield from with_keyword(function, "replace", "use_rslora", "False")


def plan(at: api.Position) -> api.Plan:
    """How far the combined adapter's effect is from three others, as a part of the right effect."""
    apart = {"from_right": api.SIZE, "from_scaled": api.SIZE, "from_plain": api.SIZE}
    return {"combined": api.Kind({**apart, "effect": api.SIZE, "adapters": api.many(api.LINE)})}


def run(ctx: api.Context) -> None:
    """Combine one adapter with weight 1, and compare its effect on some rows."""
    import torch
    from peft import LoraConfig, get_peft_model
    from torch import nn

    p = ctx.params
    options = {} if p.kind == "lora" else {p.kind: True}
    base = nn.Sequential(nn.Linear(8, 8)).to(ctx.device)
    alpha = 4 * p.rank
    config = LoraConfig(r=p.rank, lora_alpha=alpha, target_modules=["0"], **options)
    model = get_peft_model(base, config).eval()
    layer = model.base_model.model[0]
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if name.startswith("lora_B"):  # all zeros in a new adapter
                weight.normal_()
        rows = torch.randn(16, 8, device=ctx.device)
        with model.disable_adapter():
            without = model(rows)
        expected = model(rows) - without
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        plain = layer.scaling["default"] * rows @ a.T @ b.T
        model.add_weighted_adapter(["default"], [1.0], "sum", combination_type=p.combination)
        model.set_adapter("sum")
        effect = model(rows) - without
    apart = {"from_right": expected, "from_scaled": expected * p.rank**0.5, "from_plain": plain}
    distances = {n: float((effect - other).norm() / expected.norm()) for n, other in apart.items()}
    adapters = sorted({name for m in model.modules() for name in getattr(m, "active_adapters", ())})
    ctx.record("combined", **distances, effect=float(expected.norm()), adapters=adapters)


def detect(records: api.Records) -> api.Finding | None:
    """The combined adapter is not the one that it is made of. Its effect is sqrt(rank) times that
    one's, or that of lora_A and lora_B alone."""
    (record,) = records.of("combined")
    if api.near(record["from_right"], 0, within=TOLERANCE):
        return None
    scaled, plain = (
        api.near(record[n], 0, within=TOLERANCE) for n in ("from_scaled", "from_plain")
    )
    root = records.params.rank**0.5
    effect = f"{root:.4g} times as large" if scaled else "that of lora_A and lora_B alone"
    return api.Finding(
        f"the effect of the combined adapter is {effect}: off by {record['from_right']:.4g} of it"
        if scaled or plain
        else f"the effect of the combined adapter is off by {record['from_right']:.4g} of it",
        ranks=records.ranks,
        magnitude=record["from_right"],
        unit="of the right effect",
        documented=scaled or plain,
    )


def exercised(records: api.Records) -> api.Exercise:
    """An adapter with a bias or another scaling was combined."""
    (record,), kind = records.of("combined"), records.params.kind
    text = f"an adapter with {kind} was combined; the active adapter is {record['adapters']}"
    met = record["adapters"] == ["sum"] and record["effect"] > 0
    return api.Exercise.needs(met, f"not combined: {text}") & api.Exercise.of(kind != "lora", text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The combined adapter has an effect."""
    (record,) = records.of("combined")
    return {"the combined adapter is not active": record["adapters"] != ["sum"]}


picture = api.bars(
    "How far a combination of one adapter is from that adapter",
    "with the bug its effect is another one",
    lambda records: [("weight 1", float(records.of("combined")[0]["from_right"]))],
    "of the right effect",
)
