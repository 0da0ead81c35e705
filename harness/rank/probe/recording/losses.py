"""The losses of a script: the evaluation losses that it reports, and the loss of its model.

The script or its package averages a reported loss over ranks, after the model. So the probe
compares the reported number. It compares the model's own loss with the mean cross-entropy of its
logits and labels. That finds a fault that all layouts have in common, which no comparison of
layouts can find: a gradient that is too large or too small even on one rank. This works only for
models that take ``labels`` and return ``logits``, as those of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from harness.bugs.api.numbers import near
from harness.detectors.arithmetic import Projection, projection
from harness.detectors.rows import IGNORED
from harness.rank import events

if TYPE_CHECKING:
    from torch import Tensor

LOSS = re.compile(r"(eval|val|valid|validation|test|dev)[_/ -].*loss", re.IGNORECASE)
"""Matches the names of evaluation losses."""


Losses = list[tuple[int, str, float]]
"""Each loss that a rank has reported: the steps before it, its name, and its value."""


def note_reports(
    losses: Losses, steps: Callable[[], int]
) -> events.Subscription[events.LoggedNumbers]:
    """Subscribe to reports. ``steps`` returns the number of steps so far."""

    def note(event: events.LoggedNumbers) -> None:
        found = evaluations([*event.values, event.value])
        losses.extend((steps(), name, loss) for name, loss in found)

    return events.instrument.on(events.LoggedNumbers, after=note)


def evaluations(arguments: list[Any]) -> Iterator[tuple[str, float]]:
    """The evaluation losses among the arguments of a report and in its return value."""
    pairs: list[tuple[Any, Any]] = list(pairwise(arguments))  # a name, and then its number
    for argument in arguments:
        for part in argument if isinstance(argument, (list, tuple)) else [argument]:
            pairs += part.items() if isinstance(part, Mapping) else []
    for name, value in pairs:
        if isinstance(name, str) and LOSS.search(name):
            number = value.item() if hasattr(value, "item") else value
            if isinstance(number, (int, float)):
                yield name, float(number)


IDS, LABELS, LOGITS, MASK = "input_ids", "labels", "logits", "attention_mask"

OWN = "the reference's gradient is"
"""The beginning of the note. Recorded notes are recognised by these words."""

SHIFTED = (
    "the labels are those of the next token already, and the loss takes the next ones again: the "
    "model learns the token after the next one"
)

ENDLESS = (
    "the last token of each row is never a label, as if it were padding, and all other tokens are: "
    "the model does not learn to stop"
)

NEAR_OWN = 2e-3
"""How far a gradient may be from that of the mean cross-entropy, as a fraction."""


def note_on_loss(ratio: float | None) -> str:
    """The note on a gradient that is ``ratio`` times the mean's; empty if that is about 1."""
    if ratio is None or near(ratio, 1.0, within=NEAR_OWN):
        return ""
    return (
        f"{OWN} {ratio:.4g} times that of the mean cross-entropy of its own logits and labels: all "
        "layouts have that, unless the loss is scaled on purpose"
    )


def follow(
    output: Any, inputs: Mapping[str, Any], report: Callable[[Projection, bool], None]
) -> None:
    """When the gradient of the logits is computed, call ``report`` with its share of the mean's
    gradient, and with whether labels were shifted twice. If the gradient has another direction, as
    with other losses, do not call it."""
    import torch

    logits, labels = getattr(output, LOGITS, None), inputs.get(LABELS)
    if not (isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return
    if not logits.requires_grad or labels.is_floating_point() or hasattr(logits, "full_tensor"):
        return
    if logits.shape[:-1] != labels.shape:
        return

    def compared(gradient: Any) -> None:
        if gradient is None:  # a wrapper's copy of the logits, which the loss does not use
            return
        for shift in (False, True) if labels.dim() > 1 else (False,):
            places, rows = gradient_of_mean(logits.detach(), labels, shift)
            expected = rows.new_zeros(labels.numel(), logits.shape[-1])
            expected[places] = rows
            part = projection(_vector(gradient), _vector(expected))
            if len(places) and part.is_factor:
                report(part, shift and _shifted(inputs.get(IDS), labels))
                return

    logits.register_hook(compared)


def gradient_of_mean(logits: Tensor, labels: Tensor, shift: bool) -> tuple[Tensor, Tensor]:
    """The gradient of the mean cross-entropy at the positions that have a label.

    Returns the numbers of these positions, and the gradient of the logits there, a row for each:
    ``(softmax - onehot) / count`` in fp32. With ``shift`` each position predicts the label of the
    next one, as in causal models.
    """
    import torch

    targets = labels
    if shift:
        targets = labels.roll(-1, 1)
        targets[:, -1] = IGNORED
    targets = targets.flatten()
    places = (targets != IGNORED).nonzero().flatten()
    gradient = logits.reshape(-1, logits.shape[-1])[places].float().softmax(-1)
    gradient[torch.arange(len(places), device=places.device), targets[places]] -= 1
    return places, gradient / len(places)


def _shifted(ids: Any, labels: Any) -> bool:
    """Whether the labels that count are the next token's ids, and not their own token's."""
    if getattr(ids, "shape", None) != labels.shape:
        return False
    counts = labels != IGNORED
    in_place = (labels == ids)[counts].all()
    following = (labels[:, :-1] == ids[:, 1:])[counts[:, :-1]]
    return bool(following.numel() and following.all() and not in_place)


def ends_masked(inputs: Mapping[str, Any]) -> bool:
    """Whether the tokens that equal the last token of a row, and only those, have no label, as if
    they were padding. Padding itself does not count."""
    tensors: list[Any] = [inputs.get(name) for name in (IDS, LABELS, MASK)]
    ids, labels, mask = tensors
    shapes = {getattr(each, "shape", None) for each in tensors}
    if len(shapes) > 1 or getattr(ids, "ndim", 0) != 2 or len(ids) < 2:
        return False
    real = mask.bool()
    positions = ids.shape[1] - 1 - real.flip(1).int().argmax(1)
    ends = ids.gather(1, positions[:, None])
    alone = ((labels == IGNORED) & real) == ((ids == ends) & real)
    return bool((ends == ends[0]).all() and alone.all())


def _vector(tensor: Any) -> Any:
    return tensor.detach().cpu().double().flatten()
