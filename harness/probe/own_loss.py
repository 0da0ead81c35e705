"""Does a model's loss differentiate as the mean cross-entropy of its own logits and labels?

This finds what all layouts have in common, which no comparison of layouts can: a loss whose
gradient is too large or too small on one rank already. It looks only at models that return
``logits`` and are given ``labels``, as those of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.api.numbers import near
from harness.probe.numbers import Share, share

LABELS, LOGITS = "labels", "logits"

OWN = "the reference's gradient is"
"""How the note begins: by these words a recorded note is recognised, however it goes on."""

NEAR = 2e-3
"""How far a gradient may be from that of the mean cross-entropy, as a part of it."""


def note(ratio: float | None) -> str:
    """What to say of a gradient that is ``ratio`` times the mean's; empty if that is about 1."""
    if ratio is None or near(ratio, 1.0, within=NEAR):
        return ""
    return (
        f"{OWN} {ratio:.4g} times that of the mean cross-entropy of its own logits and labels: all "
        "layouts have that, unless the loss is scaled on purpose"
    )


def follow(output: Any, given: Mapping[str, Any], found: Callable[[Share], None]) -> None:
    """Call ``found`` when the gradient of the logits is computed, with how much of the mean's
    gradient it has; not if it has another direction, as with other losses."""
    import torch

    logits, labels = getattr(output, LOGITS, None), given.get(LABELS)
    if not (isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return
    if not logits.requires_grad or labels.is_floating_point() or hasattr(logits, "full_tensor"):
        return

    def compared(gradient: Any) -> None:
        if gradient is None:  # a wrapper's copy of the logits, which the loss does not use
            return
        shares = [
            share({LOGITS: _array(gradient.detach())}, {LOGITS: _array(expected)})
            for expected in _gradients(logits.detach().float(), labels)
        ]
        fitting = [one for one in shares if one.is_factor]
        if fitting:
            found(fitting[0])

    logits.register_hook(compared)


def _array(tensor: Any) -> Any:
    return tensor.cpu().float().numpy()


def _gradients(logits: Any, labels: Any) -> Iterator[Any]:
    """The gradients of the mean cross-entropy, where labels are for the same or the next place."""
    import torch
    from torch.nn.functional import cross_entropy

    for shift in (0, 1) if labels.dim() > 1 else (0,):
        if logits.shape[:-1] != labels.shape:
            return
        leaf = logits.clone().requires_grad_()
        with torch.enable_grad():
            scores, wanted = (leaf[:, :-1], labels[:, 1:]) if shift else (leaf, labels)
            loss = cross_entropy(scores.flatten(0, -2), wanted.flatten())
        yield torch.autograd.grad(loss, leaf)[0]
