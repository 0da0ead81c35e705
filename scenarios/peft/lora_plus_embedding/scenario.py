"""LoRA+ ignores loraplus_lr_embedding: adapters of embeddings train at the plain learning rate.

This affects users who call ``create_loraplus_optimizer`` with an adapter of an embedding.
``loraplus_lr_embedding`` has no effect, and its default of 1e-6 has none either. Both matrices of
the embedding's adapter get the plain rate: here 0.05 instead of 0.5.

Root cause: the function looks up each parameter by its name, and tests whether that is a LoRA
embedding. But the name leads to the parameter itself, and not to its module, so the test is never
true. The embedding's second matrix is called ``lora_embedding_B``, so it does not count as a
``lora_B`` either.
"""

from __future__ import annotations

from harness.bugs import api

A, B = "embedding A", "embedding B"
NAMES = {"lora_embedding_A": A, "lora_embedding_B": B, "lora_A": "linear A", "lora_B": "linear B"}
"""What we call an adapter's matrix, by a part of its name."""


def plan(at: api.Position) -> api.Plan:
    """Each step: the norms of each matrix's gradient and movement."""
    names = [name for name in NAMES.values() if at.params.adapted or "linear" in name]
    norms = api.held(dict.fromkeys(names, api.SIZE))
    return {
        "step": api.Kind(
            {"gradient": norms, "moved": norms, "loss": api.SIZE}, api.each(at.params.steps)
        )
    }


def run(ctx: api.Context) -> None:
    """Train adapters with LoRA+ over SGD; record how far each matrix moves."""
    import torch
    from peft import LoraConfig, get_peft_model
    from peft.optimizers import create_loraplus_optimizer
    from torch import nn

    p = ctx.params
    base = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 4)).to(ctx.device)
    config = LoraConfig(r=4, lora_alpha=16, target_modules=["0", "1"] if p.adapted else ["1"])
    model = get_peft_model(base, config)
    optimizer = create_loraplus_optimizer(
        model,
        torch.optim.SGD,
        lr=p.lr,
        loraplus_lr_ratio=p.ratio,
        loraplus_lr_embedding=p.embedding,
    )
    weights = {
        NAMES[next(part for part in NAMES if f".{part}." in name)]: weight
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
    tokens, labels = torch.randint(16, (32,)).to(ctx.device), torch.randint(4, (32,)).to(ctx.device)
    for step in range(1, p.steps + 1):
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        gradient = {name: float(weight.grad.norm()) for name, weight in weights.items()}
        optimizer.step()
        distances = {
            n: float((weight.detach() - before[n]).norm()) for n, weight in weights.items()
        }
        ctx.record("step", step, gradient=gradient, moved=distances, loss=float(loss.detach()))


def _rates(step: api.Record) -> dict[str, float]:
    """The rate of each matrix that had a gradient."""
    return {n: step["moved"][n] / g for n, g in step["gradient"].items() if g > 0}


def _fits(rate: float, expected: float) -> bool:
    # What moved is a difference of weights of about 1, in fp32.
    return api.near(rate, expected, share=0.01)


def detect(records: api.Records) -> api.Finding | None:
    """Both matrices of the embedding's adapter moved at the plain rate; the others at theirs."""
    p, rates = records.params, [(s["step"], _rates(s)) for s in records.of("step")]
    expected = {A: p.embedding, B: p.embedding, "linear A": p.lr, "linear B": p.ratio * p.lr}
    documented = {**expected, A: p.lr, B: p.lr}
    faults = [
        (step, name, rate)
        for step, found in rates
        for name, rate in found.items()
        if not _fits(rate, expected[name])
    ]
    if not faults:
        return None
    by_name = {name: rate for _, name, rate in faults}
    lines = [
        f"{n}: the rate was {r:.4g}, where {expected[n]:.4g} is right" for n, r in by_name.items()
    ]
    return api.Finding(
        "\n".join(lines),
        step=faults[0][0],
        parameters=tuple(by_name),
        ranks=records.ranks,
        magnitude=max(abs(rate / expected[name] - 1) for name, rate in by_name.items()),
        unit="of the right rate",
        documented=all(_fits(r, documented[n]) for _, found in rates for n, r in found.items()),
    )


def exercised(records: api.Records) -> api.Exercise:
    """Both matrices of an embedding's adapter had gradients, and should have another rate."""
    p = records.params
    names = {name for step in records.of("step") for name in _rates(step)}
    return api.Exercise.of(
        {A, B} <= names, "the embedding's adapter had gradients", "the embedding has no gradients"
    ) & api.Exercise.of(
        p.embedding != p.lr, f"its rate should be {p.embedding:g}", "its rate is the plain one"
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """All matrices are trained, and the loss falls."""
    steps = records.of("step")
    distances = steps[-1]["moved"]
    return {
        "a matrix does not move": not all(distances.values()),
        "the loss at the end is not below that at the start": steps[-1]["loss"] >= steps[0]["loss"],
    }


def _of_plain(records: api.Records) -> list[tuple[str, float]]:
    rates = _rates(records.of("step")[-1])
    return [(name, rate / records.params.lr) for name, rate in rates.items()]


picture = api.bars(
    "The rate of each matrix, as a multiple of the plain rate",
    "with the bug the embedding's matrices have the plain rate; without it, their own",
    _of_plain,
    "times the plain rate",
)
