"""The relations that hold between a right loop's layouts, each defined once.

A relation is a function. It gets a Moment and returns a Broken, or None if the relation holds.

``RELATIONS`` has them in the order of cause and effect. A report names the first broken one at the
first step that has any, because the others follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.bugs.api.numbers import near
from harness.rank import compare
from harness.rank.compare import length
from harness.system.text import several
from harness.training.probe.compare.faults import Broken, several_ranks
from harness.training.probe.compare.gradients import clipped, gradient
from harness.training.probe.compare.plausibility import unheld_in_words
from harness.training.probe.compare.reference import Moment, rows_of

RATE_SHARE = 1e-6
"""How far (as a fraction) a learning rate may be from the reference's."""


def weights(moment: Moment) -> Broken | None:
    """Every rank begins with the reference's weights; after a resume, with its weights at that
    step."""
    if not moment.is_first:
        return None
    off = moment.astray("before")
    if parts := other_parts(moment):
        off = {rank: [*off.get(rank, ()), *parts] for rank in range(len(moment.ranks))}
    if not off:
        return None
    names = tuple(dict.fromkeys(name for of_rank in off.values() for name in of_rank))
    singular, plural = ("goes on", "go on") if moment.layout.resumed else ("begins", "begin")
    begin = plural if len(off) > 1 else singular
    text = f"{several_ranks(off)} {begin} with other weights: {several(names)}"
    if moment.layout.resumed:
        start, rounding = moment.reference.steps[0].before, moment.reference.spread(0, "before")
        if not any(
            compare.astray(one.before, moment.owned(rank, start), rounding)
            for rank, one in enumerate(moment.ranks)
        ):
            text = BEGAN_AGAIN
    return Broken("weights", text, parameters=names, ranks=tuple(off))


LIKE_OUTSIDE = 0.1
"""How far (as a fraction) a change outside of the step may be from the reference's."""


def outside(moment: Moment) -> Broken | None:
    """Between two steps, weights change only as much as the reference's do: not at all, as a rule.
    Before the first step of a layout, nobody knows what they were."""
    if moment.is_first:
        return None
    for rank in range(len(moment.ranks)):
        changes, expected = moment.pair(rank, "outside")
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


UNHELD = "optimizer's parameters"


def unheld(moment: Moment) -> Broken | None:
    """An optimizer has what the reference's has."""
    if not moment.is_first:
        return None
    moved = {  # by the reference's optimizer
        name
        for step in moment.reference.steps
        for name, update in step.update.items()
        if update.any()
    }
    for rank, step in enumerate(moment.ranks):
        if names := [name for name in step.unheld if name in moved]:
            text = f"rank {rank}: {unheld_in_words(step, names)}"
            return Broken(UNHELD, text, parameters=tuple(names), ranks=(rank,))
    return None


def other_parts(moment: Moment) -> list[str]:
    """The parameters whose parts on all ranks are not the reference's weights, in any order: each
    rank has drawn its own."""
    import numpy

    names = []
    for name in moment.parts_of(0):
        expected = moment.expected.before[name]
        parts = [one.before[name].ravel() for one in moment.ranks if name in one.before]
        values = numpy.sort(numpy.concatenate(parts))
        if values.size != expected.size:
            continue  # some ranks have the same part
        rounding = moment.spread("before")[name]
        if length(values - numpy.sort(expected.ravel())) > compare.SAFE * rounding:
            names.append(name)
    return names


BEGAN_AGAIN = "it began again at step 1: the resume arguments had no effect"


def optimizer(moment: Moment) -> Broken | None:
    """After a resume, the optimizer of rank 0 has the state that the reference's had."""
    expected = moment.expected.state
    if not (moment.is_first and moment.layout.resumed and expected):
        return None
    rounding = moment.spread("state")
    off = compare.astray(moment.ranks[0].state, expected, rounding)
    if not off:
        return None
    lost = [name for name in expected if name not in moment.ranks[0].state]
    how = "has no state" if len(lost) == len(expected) else f"has another state: {several(off)}"
    return Broken("optimizer", f"the optimizer {how}", parameters=tuple(off))


def samples(moment: Moment) -> Broken | None:
    """All ranks and micro-batches together see the rows of the reference's step. If ranks see the
    same rows, a row of several ranks counts once, and a rank without any of the reference's is a
    later stage, which is given something else."""
    expected = Counter(rows_of(moment.expected))
    rows, *others = (Counter(rows_of(one)) for one in moment.ranks)
    for other_rows in others:
        if not moment.same_rows:
            rows += other_rows
        elif other_rows & expected:
            rows |= other_rows
    missing = expected - rows
    if rows == expected:
        return None
    text = (
        f"{rows.total()} rows, {len(rows)} of them distinct; the reference has {expected.total()}, "
        f"and {missing.total()} of its rows are missing"
    )
    if count := moment.fewer_micro_batches:
        early = f"a step came after {count} of {moment.layout.k} micro-batches"
        return Broken("samples", f"{early}: {text}")
    return Broken("samples", text, details=_divides_itself(moment, rows.total(), expected.total()))


def _divides_itself(moment: Moment, row_count: int, expected_count: int) -> tuple[str, ...]:
    """What to write if the script seems to divide its batch size itself, by the ranks or by the
    micro-batches, so that it sees exactly that part of the rows; empty if not."""
    ranks, k = moment.layout.rank_factor, moment.layout.k
    divisors = {"rows*ranks": ranks, "rows*k": k, "total": ranks * k}
    whole = [name for name, n in divisors.items() if n > 1 and row_count * n == expected_count]
    if moment.same_rows or not whole:
        return ()
    return (
        f"these are 1/{expected_count // row_count} of the rows: if the script divides its batch "
        f"size itself, give it {{{whole[0]}}} instead of {{rows}}",
    )


def stale(moment: Moment) -> Broken | None:
    """A step begins without gradients."""
    ranks = tuple(rank for rank, one in enumerate(moment.ranks) if one.stale)
    if not ranks:
        return None
    size = max(one.stale for one in moment.ranks)
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
    text = f"{mean:.6g}; the reference has {expected:.6g}: {moment.in_words(ratio)}"
    return Broken("loss", text, ratio, moment.meaning(ratio))


def mean_loss(moment: Moment) -> float:
    """The mean of the ranks that have a loss: in a pipeline, the last stage."""
    losses = [sum(one.losses) for one in moment.ranks if one.losses]
    return sum(losses) / max(len(losses), 1)


def rate(moment: Moment) -> Broken | None:
    """The learning rate is the reference's."""
    expected = moment.expected.lr
    for rank, step in enumerate(moment.ranks):
        pairs = list(zip(step.lr, expected, strict=False))
        if all(near(a, b, share=RATE_SHARE) for a, b in pairs) and len(step.lr) == len(expected):
            continue
        actual, reference_rate = next(((a, b) for a, b in pairs if a != b), (step.lr, expected))
        text = f"{shown_rate(actual)}; the reference has {shown_rate(reference_rate)}"
        return Broken("learning rate", text, ranks=(rank,))
    return None


def shown_rate(rate: float | list[float]) -> str:
    """A rate, or the rates of all groups, without digits that only rounding has left."""
    return f"{rate:.8g}" if isinstance(rate, float) else ", ".join(map(shown_rate, rate))


def update(moment: Moment) -> Broken | None:
    """Every rank's weights go as far as the reference's, where that is more than rounding."""
    off = moment.astray("update", moment.reference.certain(moment.number))
    if not off:
        return None
    rank, names = next(iter(off.items()))
    part = compare.share(*moment.pair(rank, "update"))
    text = f"{several_ranks(off)}: {moment.in_words(part)} the reference's; {several(names)}"
    return Broken("update", text, part.ratio, moment.meaning_of(part), tuple(names), tuple(off))


def average(moment: Moment) -> Broken | None:
    """After a resume, averages of the weights are the reference's, if it has as many copies of the
    model: one may be made later."""
    if not moment.layout.resumed:
        return None
    copies, expected_copies = moment.ranks[0].copies, moment.expected.copies
    for expected in expected_copies:
        alike, of_reference = (
            [copy["weights"] for copy in each if copy["holder"] == expected["holder"]]
            for each in (copies, expected_copies)
        )
        rounding = moment.reference.spread_of_copy(moment.number, expected)
        is_lost = all(compare.astray(each, expected["weights"], rounding) for each in alike)
        if expected["is_average"] and len(alike) >= len(of_reference) and is_lost:
            text = f"no copy of the weights ({expected['holder']}) has the reference's average"
            return Broken(AVERAGE, text)
    return None


AVERAGE = "average"

RELATIONS = (
    *(weights, outside, optimizer, samples, stale),
    *(gradient, clipped, loss, rate, update, average),
)


def broken(moment: Moment) -> list[Broken]:
    """The relations that do not hold at a step.

    A loss alone does not count: where the gradient is right, a loop may scale its loss as it likes.
    """
    return harmful(one for relation in RELATIONS if (one := relation(moment)) is not None)


def harmful(faults: Iterable[Broken]) -> list[Broken]:
    """The faults; none if the loss is the only one."""
    faults = list(faults)
    return [] if [one.relation for one in faults] == ["loss"] else faults


def is_updated(moment: Moment, names: Iterable[str]) -> bool:
    """Whether the reference's update of some parameters is large enough to be seen: it is not with
    a rate of 0."""
    keep = moment.reference.certain(moment.number)
    update = compare.masked({name: moment.expected.update[name] for name in names}, keep)
    return bool(compare.astray({}, update, moment.spread("update")))
