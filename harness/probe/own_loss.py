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

IDS, LABELS, LOGITS = "input_ids", "labels", "logits"
IGNORED = -100

OWN = "the reference's gradient is"
"""How the note begins: by these words a recorded note is recognised, however it goes on."""

SHIFTED = (
    "the labels are those of the next token already, and the loss takes the next ones again: the "
    "model learns the token after the next one"
)

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


def follow(output: Any, given: Mapping[str, Any], found: Callable[[Share, bool], None]) -> None:
    """Call ``found`` when the gradient of the logits is computed, with how much of the mean's
    gradient it has, and whether labels were shifted twice; not if it has another direction, as with
    other losses."""
    import torch

    logits, labels = getattr(output, LOGITS, None), given.get(LABELS)
    if not (isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return
    if not logits.requires_grad or labels.is_floating_point() or hasattr(logits, "full_tensor"):
        return

    def compared(gradient: Any) -> None:
        if gradient is None:  # a wrapper's copy of the logits, which the loss does not use
            return
        for shift, expected in enumerate(_gradients(logits.detach().float(), labels)):
            fitting = share({LOGITS: _array(gradient.detach())}, {LOGITS: _array(expected)})
            if fitting.is_factor:
                found(fitting, bool(shift) and _shifted(given.get(IDS), labels))
                return

    logits.register_hook(compared)


def _shifted(ids: Any, labels: Any) -> bool:
    """Whether the labels that count are the ids of the next place, and not of their own."""
    if getattr(ids, "shape", None) != labels.shape:
        return False
    counts = labels != IGNORED
    own = (labels == ids)[counts].all()
    following = (labels[:, :-1] == ids[:, 1:])[counts[:, :-1]]
    return bool(following.numel() and following.all() and not own)


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
