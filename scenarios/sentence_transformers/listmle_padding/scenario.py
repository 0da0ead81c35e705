"""Padding counts in ListMLELoss: a list's gradient depends on the longest list of its batch.

This affects users who train a reranker of sentence-transformers with ListMLELoss or PListMLELoss on
lists of several lengths, which is the usual case. The shorter lists of a batch learn from a wrong
gradient: it pulls all scores of a list up, and the worst document's may have the wrong sign. No
message appears, and the loss falls. Lists of one length are right.

Root cause: both losses put the scores into a matrix and pad it with 1e-16. The likelihood of a
document is divided by the sum of the exponentials of its own score and of all after it, and each
place of padding adds exp(1e-16), which is 1. The mask comes after the sum. The fix masks before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from harness.bugs import api

SHORT, VOCABULARY = 2, 32
"""The documents of the shorter list, the best one first; the tokens of the model."""
_SCORES = api.many(api.NUMBER, SHORT)


def plan(at: api.Position) -> api.Plan:
    """The shorter list's scores in each batch, and the gradient of its own loss for each."""
    return {"list": api.Kind({"scores": _SCORES, "gradient": _SCORES}, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train on batches of two lists; record the gradient for the scores of the shorter one."""
    import torch
    from sentence_transformers.cross_encoder.losses import ListMLELoss

    p, scores = ctx.params, []
    torch.manual_seed(ctx.seed)
    model = _model(ctx)
    model.register_forward_hook(
        lambda module, inputs, output: scores.append(output.get("scores", output.get("logits")))
    )
    loss, optimizer = (
        ListMLELoss(model, mini_batch_size=-1),
        torch.optim.SGD(model.parameters(), 0.1),
    )
    lists = [
        [f"w{n + 2 * place}" for n in range(length)]
        for place, length in ((0, SHORT), (1, p.longest))
    ]
    labels = [torch.arange(len(documents), 0.0, -1.0) for documents in lists]
    for step in api.each(p.steps):
        optimizer.zero_grad()
        value = loss((["w20", "w21"], lists), labels)
        (gradient,) = torch.autograd.grad(value, scores[-1], retain_graph=True)
        of_list = gradient.reshape(-1)[:SHORT] * len(lists)  # the loss is the mean of the lists'
        ctx.record(
            "list", step, scores=scores[-1].reshape(-1)[:SHORT].tolist(), gradient=of_list.tolist()
        )
        value.backward()
        optimizer.step()


def _model(ctx: api.Context) -> Any:
    """A CrossEncoder of a BERT with one layer, and a tokenizer of words, made in code."""
    from sentence_transformers import CrossEncoder
    from transformers import BertConfig, BertForSequenceClassification

    from scenarios.common import texts

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = BertConfig(vocab_size=VOCABULARY, num_attention_heads=2, num_labels=1, **sizes)
    folder = str(ctx.folder / f"model-{ctx.rank}")
    BertForSequenceClassification(config).save_pretrained(folder)
    texts.tokenizer(VOCABULARY).save_pretrained(folder)
    return CrossEncoder(folder, device=str(ctx.device)).eval()  # no dropout


def _gradient(scores: Sequence[float], padding: int) -> list[float]:
    """The gradient of a list's negative log-likelihood for its scores, the best document first."""
    powers = [math.exp(score) for score in scores]
    sums = [sum(powers[place:]) + padding for place in range(len(powers))]
    return [
        power * sum(1 / total for total in sums[: place + 1]) - 1
        for place, power in enumerate(powers)
    ]


def _is(gradient: Sequence[float], other: Sequence[float]) -> bool:
    return all(api.near(*pair, within=1e-5) for pair in zip(gradient, other, strict=True))


def detect(records: api.Records) -> api.Finding | None:
    """The gradient is that of the list with places of padding, each of which counts as a document
    with a score of 0."""
    batches = records.of("list")
    faults = [one for one in batches if not _is(one["gradient"], _gradient(one["scores"], 0))]
    if not faults:
        return None
    padding, fault = records.params.longest - SHORT, faults[0]
    expected = _gradient(fault["scores"], 0)
    distances = [abs(a - b) for a, b in zip(fault["gradient"], expected, strict=True)]
    return api.Finding(
        f"the gradient for the scores of a list is {_text(fault['gradient'])}, not "
        f"{_text(expected)}",
        step=fault["step"],
        magnitude=max(distances),
        unit="of the gradient for a score",
        documented=len(faults) == len(batches)
        and all(_is(one["gradient"], _gradient(one["scores"], padding)) for one in batches),
    )


def _text(gradient: Sequence[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in gradient)


def exercised(records: api.Records) -> api.Exercise:
    """Another list of the batch is longer."""
    longest = records.params.longest
    return api.Exercise.of(longest > SHORT, f"lists of {SHORT} and {longest} documents")


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that miss the bug, and whether they fired."""
    best = [one["gradient"][0] for one in records.of("list")]
    return {"the score of the best document does not rise": any(value >= 0 for value in best)}


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """The gradients in the first batch."""
    values = [
        (variant, f"document {place}", value)
        for variant, records in trials.items()
        for place, value in enumerate(records.of("list", 0)[0]["gradient"], 1)
    ]
    caption = "with the bug the gradients for the scores of a list do not cancel each other"
    yield api.Bars("The gradient for the scores of the shorter list", caption, values, "gradient")
