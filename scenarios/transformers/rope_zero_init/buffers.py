"""Are a model's buffers those of a reference, and the logits that follow from them?

The reference is of the same class and weights, built where nothing interferes. A rank records
``buffers`` for each model: ``lane``, ``precision``, the names ``compared``, what of these is
``differing``, and what is ``turned``: values that the model computes from its buffers and that
differ. How far the reference itself is from plain torch's LLaMA is told by ``reference_off`` and
``turned_off``. How it was built is told by ``sharded`` of ``parameters``, and by ``casts``: the
dtypes of what constructors made that were asked for float32. A record ``logits`` has what the
reference and a model answered to the same tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.facts.numbers import named, near
from harness.facts.plan import Kind, Plan
from harness.facts.shapes import (
    COUNT,
    LINE,
    MAY_OVERFLOW,
    SIZE,
    Facts,
    Shape,
    alike,
    by_name,
    exactly,
    held,
    many,
    matching,
    maybe,
    one_of,
)
from harness.pictures import Lines, Picture
from harness.spec import Exercise, Finding, Lane, Position, Record, Records, Trials

if TYPE_CHECKING:
    from torch import Tensor

Difference = Mapping[str, Any]
"""What is recorded of a buffer that is not the reference's."""

ROUNDING = {Lane.CPU: 0.0, Lane.GPU: 2.0**-7}
"""How far buffers may be from a reference built on the CPU: a GPU's own arithmetic moved cosines
in bf16 by up to 2**-8."""

PLAIN, PLAIN_LOGITS = 2.0**-7, 0.05
"""How far the reference's buffers, and as a fraction its logits, may be from plain torch's: bf16
rounds cosines by up to 2**-9, and moved logits by up to 0.018; turning the other way, by 1.2."""

UNIT = "from the reference"

ROTARY = re.compile(r"(^|\.)(original_)?_*(inv_freq|cos|sin)(_cached)?$")
"""The buffers that plain torch has as well."""

LENGTHS = (257, 258, 300, 1024)
"""Of how many tokens the greatest difference of logits is recorded, besides of all."""

_DTYPE = matching(r"torch\.[a-z]+[0-9a-z_]*", "dtype of torch's")
DIFFERENCE: Facts = {
    "name": LINE,
    "dtype": _DTYPE,
    "expected_dtype": _DTYPE,
    "elements": COUNT,
    "mismatched": COUNT,
    "greatest": SIZE,
    "place": many(COUNT),
    "relative": MAY_OVERFLOW,  # where the buffer has a 0
    "relative_place": many(COUNT),
}
TURNED: Facts = {
    "turned": many(held({**DIFFERENCE, "name": one_of("cos", "sin")})),
    "turned_off": held({"cos": SIZE, "sin": SIZE}),
}
"""What is recorded besides where a model computes its cosines and sines from its buffers."""


def plan(at: Position, *precisions: str, **more: Shape) -> Plan:
    """The buffers of a model in each of these precisions, with ``more`` facts of each, then the
    logits of one."""
    float_ = one_of("float32", *CASTS.values())
    compared: Facts = {
        "lane": exactly(at.lane.value),
        "casts": alike(held({"arange": float_, "ones": float_})),
        "sharded": alike(COUNT),
        "parameters": alike(COUNT),
        "compared": alike(by_name(many(COUNT))),
        "differing": many(held(DIFFERENCE)),
        "parted": alike(many(LINE)),
        "reference_off": by_name(SIZE),
        **more,
    }
    built = [{**compared, "precision": exactly(precision)} for precision in precisions]
    return {"buffers": Kind(built, [None] * len(precisions)), "logits": Kind(_logits(at))}


def _logits(at: Position) -> Facts:
    tokens = at.params.tokens
    lengths = [str(n) for n in (*LENGTHS, tokens) if n <= tokens]
    kinds = ("cpu",) if at.lane is Lane.CPU else ("cpu", "cuda")  # where references are built
    return {
        "parameters": COUNT,
        "unequal_parameters": many(LINE),
        "tokens": exactly(tokens),
        "reference": one_of(*kinds),
        "first": maybe(COUNT),
        "after": COUNT,
        "differing": COUNT,
        "greatest": held(dict.fromkeys(lengths, SIZE)),
        "apart": many(SIZE, tokens),
        "reference_off": SIZE,
    }


CASTS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""What zero.Init makes of a float32 that a constructor is asked for, by its precision."""


class Figures(NamedTuple):
    """What ``assert_close`` says of a buffer; None where the report, or we, did not look."""

    mismatched: int
    greatest: float | None = None
    place: tuple[int, ...] | None = None
    relative: float | None = None
    relative_place: tuple[int, ...] | None = None
    dtype: str | None = None


EQUAL = Figures(0)


@dataclass(frozen=True)
class Documented:
    """What the bug does, in figures."""

    figures: Mapping[Lane, Mapping[tuple[str, str], Figures]]
    """By lane, precision and the end of a buffer's name. What is not named may be anything."""
    first: int
    """The first position, from 0, whose logits are wrong; so are all after it."""


def facts(differences: Iterable[Any]) -> list[dict[str, Any]]:
    """What to record of the differences that ``harness.detectors.buffers`` has found."""
    return [
        asdict(d)
        | {"dtype": str(d.dtype), "expected_dtype": str(d.expected_dtype)}
        | {"relative": named(d.relative)}
        for d in differences
    ]


def diverging(
    ours: Tensor, references: Mapping[str, Tensor], lengths: Iterable[int] = LENGTHS
) -> dict[str, Any]:
    """What to record of a model's logits, [batch, positions, vocabulary], and of references'.

    Compared is with the reference that agrees for longest. ``first`` is the first position, from
    0, at which any logit differs, or None; ``after`` counts the positions from there on, and
    ``differing`` those of them that differ. ``greatest`` has the greatest difference within the
    first so many positions, for each of ``lengths`` and for all; ``apart`` has that at each.
    """
    apart = {
        name: (ours - theirs).abs().float().amax(dim=(0, 2)).cpu()
        for name, theirs in references.items()
    }
    best = max(apart, key=lambda name: _agreeing(apart[name]))
    distance, length = apart[best], len(apart[best])
    first = _agreeing(distance)
    return {
        "tokens": length,
        "reference": best,
        "first": None if first == length else first,
        "after": length - first,
        "differing": int(distance.count_nonzero()),
        "greatest": {str(n): float(distance[:n].max()) for n in [*lengths, length] if n <= length},
        "apart": distance.tolist(),
    }


def _agreeing(distance: Tensor) -> int:
    """For how many positions there is no difference; NaN is one."""
    places = distance.nonzero()
    return int(places[0]) if len(places) else len(distance)


def beyond(difference: Difference, rounding: float) -> bool:
    """Whether a difference is more than rounding: another dtype is, and NaN is."""
    return difference["dtype"] != difference["expected_dtype"] or not near(
        difference["greatest"], 0.0, within=rounding
    )


def unlike_reference(records: Records, documented: Documented) -> Finding | None:
    """Some buffer or logit is not the reference's; documented where all figures are."""
    built, answers = records.of("buffers"), records.of("logits")
    odd = list(dict.fromkeys(_no_reference(records)))
    if odd:
        return Finding("\n".join(odd), ranks=records.ranks, documented=False)
    wrong = [
        (_precision(record), difference)
        for record in built
        for difference in _found(record)
        if beyond(difference, ROUNDING[Lane(record["lane"])])
    ]
    if not wrong and all(answer["first"] is None for answer in answers):
        return None
    doubts = [doubt for record in built for doubt in _unlike(record, documented.figures)]
    doubts += [doubt for answer in answers for doubt in _diverging_unlike(answer, documented.first)]
    alike: dict[tuple[str, str], Difference] = {}
    for precision, difference in wrong:  # the layers repeat it, and so do the ranks
        alike.setdefault((precision, difference["name"].rpartition(".")[2]), difference)
    lines = [_told(precision, difference) for (precision, _), difference in alike.items()]
    named = {name for record in built for name in record["compared"]}
    return Finding(
        message="\n".join([*dict.fromkeys(doubts), *lines, *map(_diverges, answers[:1])]),
        parameters=tuple(dict.fromkeys(d["name"] for _, d in wrong if d["name"] in named)),
        step=0,  # buffers are wrong as soon as the model is built
        ranks=records.ranks,
        magnitude=max((difference["greatest"] for _, difference in wrong), default=None),
        unit=UNIT,
        documented=bool(wrong and answers) and not doubts,
    )


def _precision(record: Record) -> str:
    return str(record.get("precision", "bf16"))


def _no_reference(records: Records) -> Iterator[str]:
    """Where the reference is no LLaMA, or one of other weights, or where what is told of it does
    not go together: then nothing is proved by it."""
    for record in records.of("buffers"):
        for name, off in {**record["reference_off"], **record.get("turned_off", {})}.items():
            if not near(off, 0.0, within=PLAIN):
                yield f"the reference's {name} is {off:.3g} off plain torch's"
        yield from (f"{_precision(record)}: {line}" for line in _mistold(record))
    for answer in records.of("logits"):
        yield from _logits_mistold(answer, records.of("buffers", answer["rank"]))
        off = answer["reference_off"]
        if not near(off, 0.0, within=PLAIN_LOGITS):
            yield f"the reference's logits are off by {off:.3g} of plain torch's"
        if answer["unequal_parameters"]:
            yield f"the weights are not the reference's: {', '.join(answer['unequal_parameters'])}"


def _mistold(record: Record) -> Iterator[str]:
    """What is told of buffers that are none, or are of another size; and those of which it is not
    told how far the reference is from plain torch."""
    compared = record["compared"]
    first = {re.sub(r"(?<=\.)\d+(?=\.)", "0", name) for name in compared}  # the reference has those
    known, saved = record["reference_off"], record.get("saved")
    for name in sorted(first - set(known)):
        if ROTARY.search(name):
            yield f"the reference's {name} was not compared with plain torch's"
    for name in sorted({*known, *record["parted"]} - first - set(compared)):
        yield f"{name} is no buffer of the model"
    for difference in record["differing"]:
        name, elements = difference["name"], difference["elements"]
        if name not in compared or math.prod(compared[name]) != elements:
            yield f"{name} was not compared as a buffer of {elements} elements"
        elif difference["mismatched"]:
            places = {len(difference["place"]), len(difference["relative_place"])}
            if places != {max(1, len(compared[name]))}:  # a scalar's is (0,)
                yield f"{name} is told to differ at a place that it does not have"
    if saved and saved != sorted(compared):
        yield "other buffers were saved than those of the model"


def _logits_mistold(answer: Record, built: Sequence[Record]) -> Iterator[str]:
    """What is told twice of logits, and not alike."""
    tokens, first = answer["tokens"], answer["first"]
    begun = tokens if first is None else first
    if begun + answer["after"] != tokens or (answer["differing"] > 0) is (first is None):
        told = f"first is {first}, after {answer['after']} and differing {answer['differing']}"
        yield f"the logits of {tokens} tokens: {told}, which do not go together"
    apart = answer["apart"]
    if [n for n, each in enumerate(apart) if each][:1] != [first] * (first is not None):
        yield f"the logits of {tokens} tokens: not from position {first} on are they apart"
    if sum(map(bool, apart)) != answer["differing"]:
        yield f"the logits of {tokens} tokens: not {answer['differing']} of them are apart"
    for length, greatest in answer["greatest"].items():
        if max(apart[: int(length)]) != greatest:
            yield f"the logits of {length} tokens: greatest is {greatest:g}, and is told otherwise"
        if (greatest > 0) is not (int(length) > begun):
            yield f"the logits of {length} tokens: greatest is {greatest:g}, and first is {first}"
    if any(record["parameters"] != answer["parameters"] for record in built):
        yield "the model of the logits has other parameters than that of the buffers"


def _found(record: Record) -> Sequence[Difference]:
    return [*record["differing"], *record.get("turned", ())]


def _unlike(
    record: Record, documented: Mapping[Lane, Mapping[tuple[str, str], Figures]]
) -> Iterator[str]:
    """What a rank's buffers of one precision have, where the report has something else."""
    found = {difference["name"]: _figures(difference) for difference in _found(record)}
    compared = dict.fromkeys([*record["compared"], *found])
    for (precision, buffer), figures in documented[Lane(record["lane"])].items():
        if precision != _precision(record):
            continue
        names = [name for name in compared if name.endswith(buffer)]
        if not names:
            yield f"{precision}: nothing called {buffer} was compared"
        for name in names:
            told = zip(Figures._fields, found.get(name, EQUAL), figures, strict=True)
            odd = [
                f"{field.replace('_', ' ')} is {seen}, where {wanted} is documented"
                for field, seen, wanted in told
                if wanted is not None and seen != wanted
            ]
            if odd:
                yield f"{precision} {name}: {', '.join(odd)}"


def _figures(difference: Difference) -> Figures:
    return Figures(
        difference["mismatched"],
        difference["greatest"],
        tuple(difference["place"][-2:]),  # some releases have more dimensions, of size 1
        float(difference["relative"]),
        tuple(difference["relative_place"][-2:]),
        difference["dtype"],
    )


def _diverging_unlike(answer: Record, first: int) -> Iterator[str]:
    """What the logits did, where the first wrong position should part them for good."""
    if answer["first"] is None:
        yield f"the logits of {answer['tokens']} tokens are the same nevertheless"
    elif answer["first"] != first:
        yield f"the logits differ from position {answer['first']} on, and not from {first}"
    elif answer["differing"] != answer["after"]:
        yield f"{answer['after'] - answer['differing']} later positions have equal logits again"


def _told(precision: str, difference: Difference) -> str:
    seen, elements = _figures(difference), difference["elements"]
    dtypes = f"{difference['dtype']}, where the reference is {difference['expected_dtype']}; "
    return (
        f"{precision} {difference['name']}: "
        f"{dtypes if difference['dtype'] != difference['expected_dtype'] else ''}"
        f"{seen.mismatched} of {elements} elements ({seen.mismatched / elements:.1%}) differ, by "
        f"up to {seen.greatest:g} at {seen.place}, relatively by up to {seen.relative:g} at "
        f"{seen.relative_place}"
    )


def _diverges(answer: Record) -> str:
    if answer["first"] is None:
        return f"the logits of {answer['tokens']} tokens are the same"
    greatest = max(answer["greatest"].values())
    return (
        f"the logits of {answer['tokens']} tokens differ from position {answer['first']} on, by up "
        f"to {greatest:.3g}; the weights are bitwise equal"
    )


def under_zero_init(records: Records, asked: str) -> Exercise:
    """zero.Init was at work while every model was built.

    ``asked`` is the constructor that tells: of what it was asked to make in float32, zero.Init has
    made its own precision.
    """
    built = records.of("buffers")
    for record in built:
        where, came = f"rank {record['rank']}, {_precision(record)}", record["casts"].get(asked)
        if not record["sharded"] == record["parameters"] > 0:
            told = f"zero.Init sharded {record['sharded']} of {record['parameters']} parameters"
            return Exercise(False, f"{where}: {told}")
        if came != CASTS[_precision(record)]:
            return Exercise(False, f"{where}: torch.{asked}, asked for float32, gave {came}")
        if not record["compared"]:
            return Exercise(False, f"{where}: the model has no buffer")
    if not built:
        return Exercise(False, "no model was built")
    came = ", ".join(dict.fromkeys(f"{r['casts'][asked]} ({_precision(r)})" for r in built))
    return Exercise(
        True,
        f"zero.Init sharded all {built[0]['parameters']} parameters, and torch.{asked}, asked for "
        f"float32, gave {came}",
    )


def asked_beyond(records: Records, position: int) -> Exercise:
    """The logits of more positions were compared than those before ``position``, from 0."""
    tokens = [answer["tokens"] for answer in records.of("logits")]
    told = f"the logits of {min(tokens, default=0)} tokens were compared"
    return Exercise.of(min(tokens, default=0) > position, told, told)


def weights_differ(records: Records) -> dict[str, bool]:
    """Buffers are none of the weights, which are right."""
    unequal = any(answer["unequal_parameters"] for answer in records.of("logits"))
    return {"a parameter differs from the reference's": unequal}


def ranks_differ(records: Records) -> dict[str, bool]:
    """Every rank is wrong in the same way."""
    return {"a buffer differs between ranks": any(r["parted"] for r in records.of("buffers"))}


def by_position(trials: Trials) -> Iterator[Picture]:
    """A picture of how far the logits are from the reference's, at each position of the text."""
    yield Lines(
        "How far the logits are from the reference's",
        "with the bug they differ from one position on, and by more the further on",
        [
            (variant, place, distance)
            for variant, records in trials.items()
            for answer in records.of("logits", 0)
            for place, distance in enumerate(answer["apart"])
        ],
        x="position",
        y="greatest difference of a logit",
    )
