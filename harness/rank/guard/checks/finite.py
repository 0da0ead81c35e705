"""Losses and weights are finite; otherwise, where that begins.

A loss or a gradient that is not finite is a fault if the step makes weights so: an optimizer, a
clipping by value or a loop may catch it, and the gradients of an infinite loss may be finite. A
loss scaler catches it, and then there is no step. Outputs of modules are no reason for an alarm:
some are infinite on purpose, such as the scores of masked words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from ..posting.posts import Alarm, Post
from ..sampling.module_outputs import MODEL
from .views import Memory, View, named


def has_lost_loss(post: Post) -> bool:
    """Whether a loss is not finite and all weights are: then another step can show where it
    begins. Weights that are not finite make everything so."""
    weights = post.tensors.get("weight_sizes")
    is_lost = _lost_loss(post) is not None
    return is_lost and (weights is None or bool(torch.isfinite(weights).all()))


def finite(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """Losses and weights are finite."""
    if memory.weights.was_told:
        return
    losses = {v.rank: loss for v in views if (loss := _lost_loss(v.post)) is not None}
    weights = {v.rank: lost for v in views if (lost := _lost_weights(v, memory, bool(losses)))}
    step = views[0].post.step
    looked = [view.post for view in views if view.post.outputs.calls or view.post.outputs.opaque]
    where = next(filter(None, map(_first_module, looked)), "")
    opaque = next((post.outputs.opaque for post in looked if post.outputs.opaque), "")
    if opaque and not where:
        where = f" (in which module is not seen: {opaque})"
    if weights:
        alarm = _alarm(views, memory, weights, losses)
        alarm.text += where
        memory.weights.was_told = True
        yield alarm
    elif not losses:
        memory.weights.finite_step = step
    if losses and (where or "loss" not in memory.not_seen):
        value = next(iter(losses.values()))
        memory.not_seen["loss"] = (
            f"whether it is meant that the loss is {value} in step {step}, perhaps as a batch has "
            f"no labels{where}"
        )


def _lost_loss(post: Post) -> float | None:
    """The first loss of a rank that is not finite."""
    roots = post.tensors.get("roots")
    if roots is None or bool(torch.isfinite(roots).all()):
        return None
    return next(value for value in roots.tolist() if not math.isfinite(value))


def _lost_weights(view: View, memory: Memory, has_lost_loss: bool) -> list[int]:
    """The numbers of the weights that are not finite, and were so when training began.

    Some are infinite on purpose, such as the bias of words that never occur, or the score of a
    layer that a search removes, and some modules are never used: then loss and gradient are finite.
    """
    is_first = view.rank not in memory.weights.at_first
    at_first = memory.weights.at_first.setdefault(view.rank, set())
    lost = [number for number in _not_finite(view, "weight_sizes") if number not in at_first]
    if lost and not has_lost_loss:
        spoilt = _not_finite(view, "gradient_sizes")
        begun = _not_finite(view, "sizes_before", is_infinite=not is_first)
        at_first.update(n for n in begun if n not in spoilt)
    return [n for n in lost if view.described[n].trained and n not in at_first]


def _not_finite(view: View, name: str, *, is_infinite: bool = False) -> list[int]:
    """The numbers of the parameters of which sizes in a post are not finite, or are infinite."""
    sizes = view.post.tensors.get(name)
    if sizes is None or len(sizes) != len(view.numbers) or bool(torch.isfinite(sizes).all()):
        return []
    lost = torch.isinf(sizes) if is_infinite else ~torch.isfinite(sizes)
    return [view.numbers[n] for n in lost.nonzero().flatten().tolist()]


def _alarm(
    views: Sequence[View],
    memory: Memory,
    weights: Mapping[int, list[int]],
    losses: Mapping[int, float],
) -> Alarm:
    """The alarm of weights that are not finite."""
    lost = [view for view in views if view.rank in weights]
    names = _names(lost, weights)
    before = [v.rank for v in lost if set(_not_finite(v, "sizes_before")) & set(weights[v.rank])]
    result_of_step = f"the step makes {named(names)} not finite"
    ranks = sorted(weights)
    if before:
        since = (
            f"; in step {memory.weights.finite_step} all seemed finite"
            if memory.weights.finite_step
            else ""
        )
        names = _names(lost, {v.rank: _not_finite(v, "sizes_before") for v in lost})
        verb = "were" if len(names) > 1 else "was"
        text = f"{named(names)} {verb} not finite already before this step{since}"
        ranks = before
    elif losses:
        value = next(iter(losses.values()))
        text = (
            f"the loss is {value} with finite weights: it begins in the forward; {result_of_step}"
        )
        ranks = sorted(losses)
    else:
        text, ranks = _without_loss(views, result_of_step, ranks)
    return Alarm("finite", "lost", text, ranks, float(len(names)), names)


def _without_loss(
    views: Sequence[View], result_of_step: str, ranks: list[int]
) -> tuple[str, list[int]]:
    """What is said of weights that a step with finite losses makes so, and the ranks."""
    computed = {view.rank: name for view in views if (name := _first_computed(view))}
    with_lost_gradient = [view for view in views if _not_finite(view, "gradient_sizes")]
    if computed:
        name = next(iter(computed.values()))
        origin = f"the first gradient that is not finite is that of {name}"
        return f"it begins in the backward: {origin}; {result_of_step}", sorted(computed)
    # The computed ones are sampled at the same positions.
    used = [view.post.tensors.get("used") for view in with_lost_gradient]
    if any(one is not None and not bool(torch.isfinite(one).all()) for one in used):
        origin = "no rank computes a gradient that is not finite, and the optimizer gets one"
        return f"it begins in the reduction of gradients: {origin}; {result_of_step}", ranks
    if with_lost_gradient:
        order = [int(number) for number in with_lost_gradient[0].post.gradients.computed]
        lost = sorted(
            _not_finite(with_lost_gradient[0], "gradient_sizes"),
            key=lambda n: order.index(n) if n in order else 0,
        )
        origin = f"the gradient of {with_lost_gradient[0].described[lost[0]].name} is not finite"
        return f"it begins in the backward: {origin}; {result_of_step}", ranks
    return f"losses and gradients seem finite, and {result_of_step}", ranks


def _first_computed(view: View) -> str:
    """The first parameter for which a rank computed a gradient that is not finite."""
    for key in view.post.gradients.computed:
        gradient = view.computed(int(key)) if int(key) in view.places else None
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            return view.described[int(key)].name
    return ""


def _names(views: Sequence[View], weights: Mapping[int, list[int]]) -> list[str]:
    names = (view.described[number].name for view in views for number in weights[view.rank])
    return list(dict.fromkeys(names))


def _first_module(post: Post) -> str:
    """The first module whose output is not finite while its inputs are, of those whose output
    reaches the end of the model."""
    if not post.outputs.calls or "calls" not in post.tensors:
        return ""
    sizes = post.tensors["calls"].reshape(-1, 3).tolist()
    ends = [
        n for n, call in enumerate(post.outputs.calls) if call[2] and not math.isfinite(sizes[n][1])
    ]
    if not ends:
        is_lost = _lost_loss(post) is not None
        return f"; in step {post.step} it begins behind all modules" if is_lost else ""
    end = next((n for n in ends if math.isnan(sizes[n][1])), ends[0])
    is_nan = math.isnan(sizes[end][1])
    lost = math.isnan if is_nan else math.isinf
    firsts = [n for n in range(end + 1) if lost(sizes[n][1]) and not lost(sizes[n][0])]
    names = [post.outputs.calls[n][0] for n in firsts]
    inner = [
        n
        for n, name in zip(firsts, names)  # no module of these is within another one
        if not any(one != name and (name == MODEL or one.startswith(f"{name}.")) for one in names)
    ]
    firsts = inner or firsts
    # Of infinite outputs, some are so on purpose: the last one is followed by no finite output.
    place = firsts[0 if is_nan else -1] if firsts else end
    name, kind, *_ = post.outputs.calls[place]
    why = "" if math.isfinite(sizes[place][2]) else ", whose weights are not finite"
    value = "nan" if is_nan else "inf"
    return f"; in step {post.step} the first {value} is in the output of {name} ({kind}){why}"
