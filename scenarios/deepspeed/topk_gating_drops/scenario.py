"""A mixture of experts with k of 3 or more drops tokens that have room, if their logit is negative.

This affects users of DeepSpeed's MoE layer who send each token to three or more experts, with
drop_tokens, which is the default. Most token and expert pairs are dropped though the experts have
places for them: a token reaches one expert or none instead of k. The layer's output, its loss and
the counts of tokens per expert look normal, since the counts are taken before the drop.

Root cause: to keep each expert's most probable tokens, ``topkgating`` compares the logits of the
tokens, and puts 0 where a token did not choose the expert. A logit is often negative: then a token
that did not choose the expert comes before one that did, and takes its place. The fix compares the
probabilities, which are above 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.bugs import api

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 16


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.k > params.experts:
        raise ValueError("scenario.k must not be above scenario.experts")


def plan(at: api.Position) -> api.Plan:
    """For each expert, how many tokens chose it, how many of these with a positive logit, and how
    many it was sent; and how many tokens an expert has room for."""
    names = ("chosen", "positive", "sent")
    facts = {**{name: api.many(api.COUNT, at.params.experts) for name in names}, "room": api.COUNT}
    return {"batch": api.Kind(facts, api.each(at.params.batches))}


def run(ctx: api.Context) -> None:
    """Send tokens through DeepSpeed's MoE layer, and read what its gate decides."""
    import deepspeed
    import torch
    from deepspeed.moe.layer import MoE

    p = ctx.params
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    expert = torch.nn.Linear(WIDTH, WIDTH)
    layer = MoE(WIDTH, expert, num_experts=p.experts, k=p.k, drop_tokens=p.drop)
    layer.set_deepspeed_parallelism()
    layer.to(ctx.device)
    gate, decided = layer.deepspeed_moe.gate, []
    with torch.no_grad():
        gate.wg.weight[:, 0] = p.shift  # the first feature of each token is 1
    gate.register_forward_hook(lambda module, inputs, outputs: decided.append(outputs))
    drawn = torch.Generator().manual_seed(ctx.seed + 1)
    for batch in api.each(p.batches):
        tokens = torch.randn(p.tokens, WIDTH, generator=drawn).to(ctx.device)
        tokens[:, 0] = 1
        layer(tokens)
        logits = tokens @ gate.wg.weight.detach().T
        chose = torch.zeros_like(logits, dtype=torch.bool)
        chose.scatter_(1, logits.topk(p.k, dim=1).indices, True)
        sent, room = _sent(decided.pop(), p.experts)
        counts = {"chosen": chose.sum(0), "positive": (chose & (logits > 0)).sum(0), "sent": sent}
        facts = {name: count.tolist() for name, count in counts.items()}
        ctx.record("batch", batch, room=room, **facts)


def _sent(decided: Any, experts: int) -> tuple[Tensor, int]:
    """How many tokens a gate sends to each expert, and how many it has room for."""
    import torch

    if len(decided) == 4:
        dispatched = decided[2]  # [tokens, experts, places]
        return dispatched.any(2).sum(0), dispatched.shape[2]
    routes = decided[3].flatten().long()  # later than 0.19.0: an expert, or -1 if dropped
    return torch.bincount(routes[routes >= 0], minlength=experts), int(decided[1])


def detect(records: api.Records) -> api.Finding | None:
    """Each expert was sent its tokens with a positive logit and, of the others, those for which
    places are left behind all tokens that did not choose it."""
    batches = records.of("batch")
    room = sum(sum(_right_counts(batch)) for batch in batches)
    wrong_batches = [batch for batch in batches if batch["sent"] != _right_counts(batch)]
    if not wrong_batches:
        return None
    sent = sum(sum(batch["sent"]) for batch in batches)
    tokens = records.params.tokens * len(batches)
    return api.Finding(
        f"a token reaches {sent / tokens:.3g} experts instead of {room / tokens:.3g}; there is "
        f"room for {room} pairs of a token and an expert, and {room - sent} of them are dropped",
        step=wrong_batches[0]["step"],
        ranks=records.ranks,
        magnitude=(room - sent) / room,
        unit="of the pairs dropped",
        clock="batch",
        documented=all(batch["sent"] == _by_logits(batch, records) for batch in batches),
    )


def _right_counts(batch: api.Record) -> list[int]:
    """How many tokens each expert should get: all that chose it, up to its places."""
    return [min(chosen, batch["room"]) for chosen in batch["chosen"]]


def _by_logits(batch: api.Record, records: api.Records) -> list[int]:
    """An expert's places go to positive logits, then to tokens that did not choose it."""
    sent = []
    for chosen, positive in zip(batch["chosen"], batch["positive"], strict=True):
        spare = batch["room"] - positive - (records.params.tokens - chosen)
        sent.append(min(positive, batch["room"]) + min(max(spare, 0), chosen - positive))
    return sent


def exercised(records: api.Records) -> api.Exercise:
    """Tokens chose experts with a negative logit, and tokens could be dropped."""
    batches = records.of("batch")
    negative = sum(sum(batch["chosen"]) - sum(batch["positive"]) for batch in batches)
    text = f"tokens chose experts {negative} times with a negative logit"
    drop = "drop_tokens was " + ("on" if records.params.drop else "off")
    return api.Exercise.of(negative > 0, text) & api.Exercise.of(records.params.drop, drop)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The layer returns the counts of tokens from before the drop, so they are right."""
    k, tokens = records.params.k, records.params.tokens
    differs = any(sum(batch["chosen"]) != k * tokens for batch in records.of("batch"))
    return {"the counts of tokens by expert do not add up to k for each token": differs}


def _pairs(records: api.Records) -> Iterator[tuple[str, float]]:
    """The pairs of the first batch."""
    for batch in records.of("batch", 0)[:1]:
        yield "chosen, with room", float(sum(_right_counts(batch)))
        yield "sent", float(sum(batch["sent"]))


picture = api.bars(
    "Pairs of a token and an expert in the first batch",
    "with the bug, fewer are sent than there is room for",
    _pairs,
)
