"""The relations that hold between a right loop's layouts, each defined once.

A relation is a function. It gets a Moment and returns a Broken, or None if the relation holds.

``RELATIONS`` has them in the order of cause and effect. A report names the first broken one at the
first step that has any, because the others follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.bugs.api.numbers import finite, near
from harness.detectors.arithmetic import Projection
from harness.probe.compare.micro_batch_weights import weights_of_micro_batches
from harness.probe.compare.mistakes import in_words, meaning
from harness.probe.compare.reference import Moment
from harness.rank import compare
from harness.rank.compare import Named, length

RATE_SHARE = 1e-6
"""How far (as a fraction) a learning rate may be from the reference's."""

SHOWN = 3
"""Names that a message lists."""


@dataclass(frozen=True)
class Broken:
    """A relation that does not hold at a step."""

    relation: str
    text: str
    ratio: float | None = None
    """How much of the reference there is, where that is one number."""
    meaning: str = ""
    """What the ratio says."""
    parameters: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    details: tuple[str, ...] = field(default=())


def weights(moment: Moment) -> Broken | None:
    """Every rank begins with the reference's weights; after a resume, with its weights at that
    step."""
    if not moment.is_first:
        return None
    off = _astray(moment, "before")
    if parts := other_parts(moment):
        off = {rank: [*off.get(rank, ()), *parts] for rank in range(len(moment.ranks))}
    if not off:
        return None
    names = tuple(dict.fromkeys(name for of_rank in off.values() for name in of_rank))
    singular, plural = ("goes on", "go on") if moment.layout.resumed else ("begins", "begin")
    begin = plural if len(off) > 1 else singular
    text = f"{several_ranks(off)} {begin} with other weights: {several(names)}"
    if moment.layout.resumed and _began_again(moment):
        text = BEGAN_AGAIN
    return Broken("weights", text, parameters=names, ranks=tuple(off))


def _astray(
    moment: Moment, quantity: str, keep: Mapping[str, Any] | None = None
) -> dict[int, list[str]]:
    """The parameters of which a rank has another quantity than the reference, by rank. ``keep`` has
    masks of the values that are compared."""
    keep = keep or {}
    expected, rounding = compare.masked(moment.expected[quantity], keep), moment.spread(quantity)
    off = {
        rank: compare.astray(
            compare.masked(moment.owned(rank, one[quantity]), keep),
            moment.owned(rank, expected),
            rounding,
        )
        for rank, one in enumerate(moment.ranks)
    }
    return {rank: list(names) for rank, names in off.items() if names}


LIKE_OUTSIDE = 0.1
"""How far (as a fraction) a change outside of the step may be from the reference's."""


def outside(moment: Moment) -> Broken | None:
    """Between two steps, weights change only as much as the reference's do: not at all, as a rule.
    Before the first step of a layout, nobody knows what they were."""
    if moment.is_first:
        return None
    for rank, step in enumerate(moment.ranks):
        changes, expected = step["outside"], moment.owned(rank, moment.expected["outside"])
        off = [
            name
            for name in dict.fromkeys([*changes, *expected])
            if not near(changes.get(name, 0.0), expected.get(name, 0.0), share=LIKE_OUTSIDE)
            and name not in moment.parts_of(rank)
        ]
        if off:
            text = (
                f"rank {rank}: {several(off)} changed by {changes.get(off[0], 0.0):.2g} of their "
                "size outside of optimizer.step; in the reference by "
                f"{expected.get(off[0], 0.0):.2g}"
            )
            return Broken(BETWEEN, text, parameters=tuple(off), ranks=(rank,))
    return None


BETWEEN = "weights between steps"


def other_parts(moment: Moment) -> list[str]:
    """The parameters whose parts on all ranks are not the reference's weights, in any order: each
    rank has drawn its own."""
    import numpy

    names = []
    for name in moment.parts_of(0):
        expected = moment.expected["before"][name]
        parts = [one["before"][name].ravel() for one in moment.ranks if name in one["before"]]
        values = numpy.sort(numpy.concatenate(parts))
        if values.size != expected.size:
            continue  # some ranks have the same part
        rounding = moment.spread("before")[name]
        if length(values - numpy.sort(expected.ravel())) > compare.SAFE * rounding:
            names.append(name)
    return names


BEGAN_AGAIN = "it began again at step 1: the resume arguments had no effect"


def _began_again(moment: Moment) -> bool:
    """Whether every rank has the weights with which the reference began."""
    start, rounding = moment.reference.steps[0]["before"], moment.reference.spread(0, "before")
    return not any(
        compare.astray(one["before"], moment.owned(rank, start), rounding)
        for rank, one in enumerate(moment.ranks)
    )


def optimizer(moment: Moment) -> Broken | None:
    """After a resume, the optimizer of rank 0 has the state that the reference's had."""
    expected = moment.expected.get("state")
    if not (moment.is_first and moment.layout.resumed and expected):
        return None
    rounding = moment.spread("state")
    off = compare.astray(moment.ranks[0]["state"], expected, rounding)
    if not off:
        return None
    lost = [name for name in expected if name not in moment.ranks[0]["state"]]
    how = "has no state" if len(lost) == len(expected) else f"has another state: {several(off)}"
    return Broken("optimizer", f"the optimizer {how}", parameters=tuple(off))


def samples(moment: Moment) -> Broken | None:
    """All ranks and micro-batches together see the rows of the reference's step."""
    expected = Counter(row for micro in moment.expected["rows"] for row in micro)
    rows = _rows(moment, expected)
    missing = expected - rows
    if rows == expected:
        return None
    text = (
        f"{rows.total()} rows, {len(rows)} of them distinct; the reference has {expected.total()}, "
        f"and {missing.total()} of its rows are missing"
    )
    if came := _came_early(moment):
        text = f"{came}: {text}"
    hint = _divides_itself(moment, rows.total(), expected.total())
    return Broken("samples", text, details=(hint,) if hint else ())


def _divides_itself(moment: Moment, row_count: int, expected_count: int) -> str:
    """What to write if the script seems to divide its batch size itself, by the ranks or by the
    micro-batches, so that it sees exactly that part of the rows; empty if not."""
    ranks, k = moment.layout.rank_factor, moment.layout.k
    divisors = {"rows*ranks": ranks, "rows*k": k, "total": ranks * k}
    whole = (name for name, n in divisors.items() if n > 1 and row_count * n == expected_count)
    placeholder = next(whole, "")
    if moment.same_rows or not placeholder or _came_early(moment):
        return ""
    return (
        f"these are 1/{expected_count // row_count} of the rows: if the script divides its batch "
        f"size itself, give it {{{placeholder}}} instead of {{rows}}"
    )


def _rows(moment: Moment, expected: Counter[str]) -> Counter[str]:
    """The rows of all ranks. If ranks see the same rows, a row of several ranks counts once, and a
    rank without any of the reference's is a later stage, which is given something else."""
    rows, *others = (Counter(row for micro in one["rows"] for row in micro) for one in moment.ranks)
    for other_rows in others:
        if not moment.same_rows:
            rows += other_rows
        elif other_rows & expected:
            rows |= other_rows
    return rows


def _came_early(moment: Moment) -> str:
    """Which step came after fewer micro-batches than were requested, if one did."""
    counts = sorted({len(one["rows"]) for one in moment.ranks})
    early = moment.layout.k > 1 and len(counts) == 1 and 0 < counts[0] < moment.layout.k
    return f"a step came after {counts[0]} of {moment.layout.k} micro-batches" if early else ""


def stale(moment: Moment) -> Broken | None:
    """A step begins without gradients."""
    ranks = tuple(rank for rank, one in enumerate(moment.ranks) if one["stale"])
    if not ranks:
        return None
    size = max(one["stale"] for one in moment.ranks)
    text = (
        f"gradients of norm {size:.3g} were there before the first backward of a step: zero_grad "
        "is missing or comes too late"
    )
    return Broken("stale gradients", text, ranks=ranks)


def loss(moment: Moment) -> Broken | None:
    """The mean of the ranks' losses is the reference's."""
    mean, expected = mean_loss(moment), moment.reference.loss(moment.number)
    if near(mean, expected, within=compare.SAFE * moment.reference.loss_spread(moment.number)):
        return None
    ratio = mean / expected if expected else float("nan")
    text = f"{mean:.6g}; the reference has {expected:.6g}: {_ratio(moment, ratio)}"
    return Broken("loss", text, ratio, meaning(ratio, moment.layout.rank_factor, moment.layout.k))


def mean_loss(moment: Moment) -> float:
    """The mean of the ranks that have a loss: in a pipeline, the last stage."""
    losses = [sum(one["losses"]) for one in moment.ranks if one["losses"]]
    return sum(losses) / max(len(losses), 1)


def gradient(moment: Moment) -> Broken | None:
    """Every rank has the reference's gradient, before clipping if there is any."""
    return _gradient(moment, "raw" if moment.clipping else "grad", "gradient")


def clipped(moment: Moment) -> Broken | None:
    """After clipping, the optimizer gets the reference's gradient."""
    return _gradient(moment, "grad", "clipped gradient") if moment.clipping else None


def _gradient(moment: Moment, quantity: str, relation: str) -> Broken | None:
    """The gradients that are not the reference's. All wrong ranks are listed; the ratio and the
    parameters are those of the first of them."""
    off = _astray(moment, quantity)
    if not off:
        return None
    rank, names = next(iter(off.items()))
    tensors, expected = moment.ranks[rank][quantity], moment.owned(rank, moment.expected[quantity])
    part = compare.share(tensors, expected)
    clips = len(moment.ranks[rank]["clips"]), len(moment.expected["clips"])
    often = f"clipped {clips[0]} times a step, not {clips[1]}; " if clips[0] > clips[1] else ""
    details = [_only_some(moment, tensors, expected, names, part), _unlike_ranks(moment, quantity)]
    if quantity == "grad" and not moment.clipping and not any(details):
        details.append(weights_of_micro_batches(moment, rank))
    if moment.expected["clips"] or moment.ranks[0]["clips"]:
        details.append(_clips(moment))
    return Broken(
        relation,
        f"{several_ranks(off)}: {often}{_described(moment, part)} the reference's",
        part.ratio,
        _meaning(moment, part),
        tuple(names),
        tuple(off),
        tuple(filter(None, details)),
    )


def _only_some(
    moment: Moment, tensors: Named, expected: Named, off: Iterable[str], whole: Projection
) -> str:
    """Which parameters are wrong, if others are right."""
    off = list(off)
    if len(off) == len(expected) or not whole.right or whole.aside < 1e-3:
        return ""
    examples = several(
        f"{n} {_described(moment, compare.share(tensors, expected, [n]))}" for n in off
    )
    others = [name for name in expected if name not in off]
    are = "is" if len(others) == 1 else "are"
    few = several(others) if len(others) <= SHOWN else str(len(others))
    return f"only {examples}; {few} {are} right"


UNLIKE_RANKS = "the ranks have unlike gradients"


def random_draws(moment: Moment, fault: Broken) -> str:
    """Why this mismatch proves nothing: the model drew other random numbers in this layout. Ranks
    that disagree with each other are still wrong."""
    draws = moment.expected["draws"] and any(one["draws"] for one in moment.ranks)
    unlike = any(detail.startswith(UNLIKE_RANKS) for detail in fault.details)
    if not draws or unlike or fault.meaning or "gradient" not in fault.relation:
        return ""
    return (
        "the model draws random numbers itself (masks, noise, dropped layers), others on each rank "
        f"and in each micro-batch: switch that off. Its gradient: {fault.text}"
    )


def _unlike_ranks(moment: Moment, quantity: str) -> str:
    """The message that ranks have unlike gradients, with their mean; empty if not."""
    if moment.layout.world == 1 or moment.same_rows:
        return ""
    expected, rounding = moment.expected[quantity], moment.spread(quantity)
    tensors, *others = (one[quantity] for one in moment.ranks)
    if not any(
        compare.astray(other, {**expected, **tensors}, {**dict.fromkeys(tensors, 0.0), **rounding})
        for other in others
    ):
        return ""
    mean = compare.share(_mean(moment, quantity, expected), expected)
    text = UNLIKE_RANKS
    if mean.is_factor:
        text += (
            f"; their mean is {_ratio(moment, mean.ratio)} the reference's: they are not averaged"
        )
    return text


def _clips(moment: Moment) -> str:
    norms = ", ".join(
        f"{one['clips'][0][1]:.4g}" if one["clips"] else "none" for one in moment.ranks
    )
    expected_norm = f"{moment.expected['clips'][0][1]:.4g}" if moment.expected["clips"] else "none"
    return f"clipping saw the norm {norms} (by rank), in the reference {expected_norm}"


def rate(moment: Moment) -> Broken | None:
    """The learning rate is the reference's."""
    expected = moment.expected["lr"]
    for rank, step in enumerate(moment.ranks):
        pairs = list(zip(step["lr"], expected, strict=False))
        if all(near(a, b, share=RATE_SHARE) for a, b in pairs) and len(step["lr"]) == len(expected):
            continue
        actual, reference_rate = next(((a, b) for a, b in pairs if a != b), (step["lr"], expected))
        text = f"{shown_rate(actual)}; the reference has {shown_rate(reference_rate)}"
        return Broken("learning rate", text, ranks=(rank,))
    return None


def shown_rate(rate: float | list[float]) -> str:
    """A rate, or the rates of all groups, without digits that only rounding has left."""
    return f"{rate:.8g}" if isinstance(rate, float) else ", ".join(map(shown_rate, rate))


def update(moment: Moment) -> Broken | None:
    """Every rank's weights go as far as the reference's, where that is more than rounding."""
    off = _astray(moment, "update", moment.reference.certain(moment.number))
    if not off:
        return None
    rank, names = next(iter(off.items()))
    part = compare.share(
        moment.ranks[rank]["update"], moment.owned(rank, moment.expected["update"])
    )
    text = f"{several_ranks(off)}: {_described(moment, part)} the reference's; {several(names)}"
    return Broken("update", text, part.ratio, _meaning(moment, part), tuple(names), tuple(off))


RELATIONS = (weights, outside, optimizer, samples, stale, gradient, clipped, loss, rate, update)


def broken(moment: Moment) -> list[Broken]:
    """The relations that do not hold at a step.

    A loss alone does not count: where the gradient is right, a loop may scale its loss as it likes.
    """
    return harmful(one for relation in RELATIONS if (one := relation(moment)) is not None)


def harmful(faults: Iterable[Broken]) -> list[Broken]:
    """The faults; none if the loss is the only one."""
    faults = list(faults)
    return [] if [one.relation for one in faults] == ["loss"] else faults


GRADIENTS = ("gradient", "clipped gradient")
"""The relations of gradients that an optimizer may still average over the ranks."""


def excused_gradients(moment: Moment, faults: Iterable[Broken]) -> list[Broken]:
    """The faults that are excused: gradients may differ between ranks until the optimizer's step
    averages them, if their mean is the reference's, and so is the update."""
    excused = [one for one in faults if one.relation in GRADIENTS]
    updated = all(one.relation != "update" for one in faults)
    if not (excused and updated) or moment.layout.world == 1 or moment.same_rows:
        return []
    expected = {name: moment.expected["grad"][name] for one in excused for name in one.parameters}
    return (
        []
        if compare.astray(_mean(moment, "grad", expected), expected, moment.spread("grad"))
        else excused
    )


def is_updated(moment: Moment, names: Iterable[str]) -> bool:
    """Whether the reference's update of some parameters is large enough to be seen: it is not with
    a rate of 0."""
    keep = moment.reference.certain(moment.number)
    update = compare.masked({name: moment.expected["update"][name] for name in names}, keep)
    return bool(compare.astray({}, update, moment.spread("update")))


def _mean(moment: Moment, quantity: str, expected: Named) -> Named:
    """The mean of a quantity over the ranks, with the names of ``expected``."""
    return {
        name: sum(one[quantity].get(name, tensor * 0) for one in moment.ranks) / moment.layout.world
        for name, tensor in expected.items()
    }


def _described(moment: Moment, part: Projection) -> str:
    if part.is_factor:
        return _ratio(moment, part.ratio)
    if not finite(part.ratio):
        return "not finite, unlike"
    return f"{part.ratio:.4g} times (and {part.aside:.0%} of it in another direction)"


def _meaning(moment: Moment, part: Projection) -> str:
    layout = moment.layout
    return meaning(part.ratio, layout.rank_factor, layout.k) if part.is_factor else ""


def _ratio(moment: Moment, ratio: float) -> str:
    return in_words(ratio, moment.layout.rank_factor, moment.layout.k)


def several(names: Iterable[str]) -> str:
    names = list(names)
    remainder = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + remainder


def several_ranks(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
