"""Relations for losses and gradients on one rank, also of a model with a peft adapter."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.detectors.rows import IGNORED
from harness.rank.models.answer import NoAnswer, Refused, Wrong
from harness.rank.models.heads import Labels
from harness.rank.models.judging import require_equal
from harness.rank.models.subject import (
    Subject,
    gradient,
    gradients,
    logits,
    logits_of,
    loss_of,
    rows,
    run,
    seed,
)

CLOSE = 1e-4
"""The part of a loss by which two correct computations may differ."""

COUNT = "num_items_in_batch"
"""The argument with the number of labels in all micro-batches of a step."""

OTHER_LOSSES = {
    "prophetnet": "its loss also predicts the tokens after the next one",
    "xlnet": "its labels belong to the tokens that target_mapping chooses",
}
"""Maps types of models that have another loss by design to the reason."""

NOT_SHIFTED = "labels are not shifted inside"
"""The words with which transformers documents that the caller must shift the labels."""


def loss(subject: Subject) -> str | None:
    """The loss is the mean cross-entropy of the model's logits and the labels. In a causal language
    model, each token predicts the next label."""
    from torch.nn.functional import cross_entropy

    reason = OTHER_LOSSES.get(getattr(subject.config, "model_type", ""))
    if reason and not subject.head.classes:
        raise NoAnswer(reason)
    inputs = _unequal(subject)
    with torch.no_grad():
        output = run(subject.module, inputs)
    logits, labels, actual = logits_of(output), inputs["labels"], float(loss_of(output))
    if logits.shape[:-1] != labels.shape:
        raise NoAnswer(f"logits {list(logits.shape)} do not belong to labels {list(labels.shape)}")

    def mean(scores: Any, targets: Any) -> float:
        return float(cross_entropy(scores.flatten(0, -2).float(), targets.flatten()))

    unshifted = mean(logits, labels)
    shifted = mean(logits[:, :-1], labels[:, 1:]) if labels.ndim > 1 else unshifted
    shifts = subject.head.labels is Labels.NEXT_TOKEN
    expected, against = (shifted, unshifted) if shifts else (unshifted, shifted)
    if abs(actual - expected) <= CLOSE * expected:
        return None
    if abs(actual - against) <= CLOSE * expected:
        if not shifts:
            raise Wrong("labels are shifted: each token is to predict the label of the next one")
        if NOT_SHIFTED in (subject.module.forward.__doc__ or "").replace("*", ""):
            raise NoAnswer("its documentation says that labels must be shifted before")
        raise Wrong("labels are not shifted: each token is to predict itself, not the next one")
    raise Wrong(f"the loss is {actual:.6g}, the mean cross-entropy of its logits {expected:.6g}")


def accumulation(subject: Subject) -> str | None:
    """Micro-batches add up to the full gradient if each gets the number of labels in all."""
    if getattr(subject.module, "accepts_loss_kwargs", True) is False:
        raise Refused("it declares accepts_loss_kwargs = False, so that the Trainer knows")
    parameters = inspect.signature(subject.module.forward).parameters
    if COUNT not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise Refused(f"forward takes no {COUNT}, so that the Trainer knows")  # which sees it, too
    inputs = _unequal(subject)
    labels = inputs["labels"]
    half = len(labels) // 2
    if not half:
        raise NoAnswer("a batch of one row cannot be split")
    boundary = 1 if subject.head.labels is Labels.ROW else half
    counted = labels[:, 1:] if subject.head.labels is Labels.NEXT_TOKEN else labels
    count = torch.tensor(int((counted != IGNORED).sum()))
    parts = [rows(inputs, slice(0, boundary)), rows(inputs, slice(boundary, None))]
    _, allowed = subject.gradient
    expected = gradient(subject.module, inputs)
    actual = gradient(subject.module, *({**part, COUNT: count} for part in parts))
    require_equal(actual, expected, allowed, "the gradient")
    return None


def _unequal(subject: Subject) -> dict[str, Any]:
    """The batch, with fewer labels in its first half. With one label per row it stays as it is: its
    parts have unequal numbers of rows."""
    inputs = subject.loss_inputs()
    if subject.head.labels is Labels.ROW:
        return inputs
    labels = inputs["labels"].clone()
    length = labels.shape[1]
    labels[0, length // 2 :] = IGNORED
    if len(labels) > 2:
        labels[1, length // 4 :] = IGNORED
    return {**inputs, "labels": labels}


def checkpointing(subject: Subject) -> str | None:
    """Both kinds of gradient checkpointing change no gradient, and recompute layers."""
    module = subject.module
    if not hasattr(module, "gradient_checkpointing_enable"):
        raise NoAnswer("the model has no gradient_checkpointing_enable")
    inputs, (_, allowed) = subject.loss_inputs(), subject.gradient
    module.train()
    try:
        with _calls(module) as usual:
            expected = gradient(module, inputs)
        for kind, reentrant in (("non-reentrant", False), ("reentrant", True)):
            module.gradient_checkpointing_enable({"use_reentrant": reentrant})
            try:
                with _calls(module) as calls:
                    actual = gradient(module, inputs)
            finally:
                module.gradient_checkpointing_disable()
            require_equal(actual, expected, allowed, f"with {kind} checkpoints the gradient")
            if calls == usual:
                raise Wrong(f"{kind} checkpointing was enabled, and nothing is recomputed")
    finally:
        module.eval()
    return None


@contextmanager
def _calls(module: Any) -> Iterator[list[int]]:
    """Count the calls of all parts of a model."""
    count = [0]

    def called(*_: Any) -> None:
        count[0] += 1

    hooks = [part.register_forward_pre_hook(called) for part in module.modules()]
    try:
        yield count
    finally:
        for hook in hooks:
            hook.remove()


ADAPTER = "lora_"


def lora(subject: Subject) -> str | None:
    """Only the adapter gets gradients, and merging it into the weights changes no logits."""
    from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]

    seed()
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    module = get_peft_model(subject.copy(), config).eval()
    loss_of(run(module, subject.loss_inputs())).backward()
    by_name = gradients(module)
    others = [name for name in by_name if ADAPTER not in name]
    if others:
        raise Wrong(f"{others[0]} gets a gradient, and is no part of the adapter")
    apart = logits(module, subject.batch)
    merged = logits(module.merge_and_unload(), subject.batch)
    subject.require_equal(merged, apart, "after the adapter is merged")
    return f"{len(by_name)} parameters in the adapter"
