"""Are a model's buffers, and the logits computed with them, those of a reference?

The reference has the same class and weights, but was built without zero.Init. A rank records
``buffers`` for each model: the names ``compared``, the differences (``differing``), and the
differences of values that the model computes from its buffers (``turned``). ``reference_off`` and
``turned_off`` say how far the reference itself is from plain torch's LLaMA. ``sharded`` counts the
``parameters`` that zero.Init took over, and ``casts`` has the dtypes that constructors returned
when asked for float32. A record ``logits`` compares the model's logits with the reference's on the
same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.bugs import api

if TYPE_CHECKING:
    from torch import Tensor

BufferRecord = Mapping[str, Any]
"""What is recorded of a buffer that differs from the reference's."""

ROUNDING = {api.Lane.CPU: 0.0, api.Lane.GPU: 2.0**-7}
"""How far buffers may be from a reference built on the CPU: a GPU's own arithmetic moved cosines
in bf16 by up to 2**-8."""

PLAIN, PLAIN_LOGITS = 2.0**-7, 0.05
"""How far the reference's buffers, and as a fraction its logits, may be from plain torch's. bf16
rounds cosines by up to 2**-9, and moved logits by up to 0.018; a turn the other way, by 1.2."""

UNIT = "from the reference"

LENGTHS = (257, 258, 300, 1024)
"""For so many first tokens, and for all, the greatest difference of logits is recorded."""

_DTYPE = api.matching(r"torch\.[a-z]+[0-9a-z_]*", "dtype of torch's")
DIFFERENCE: api.Facts = {
    "name": api.LINE,
    "dtype": _DTYPE,
    "expected_dtype": _DTYPE,
    "elements": api.COUNT,
    "mismatched": api.COUNT,
    "greatest": api.SIZE,
    "place": api.many(api.COUNT),
    "relative": api.MAY_OVERFLOW,  # where the buffer has a 0
    "relative_place": api.many(api.COUNT),
}
TURNED: api.Facts = {
    "turned": api.many(api.held({**DIFFERENCE, "name": api.one_of("cos", "sin")})),
    "turned_off": api.held({"cos": api.SIZE, "sin": api.SIZE}),
}
"""Additional facts of a model that computes cosines and sines from its buffers."""


def plan(at: api.Position, *precisions: str, **more: api.Shape) -> api.Plan:
    """The buffers of a model in each of these precisions, each with ``more`` facts, and then the
    logits of one model."""
    float_ = api.one_of("float32", *CASTS.values())
    compared: api.Facts = {
        "lane": api.exactly(at.lane.value),
        "casts": api.alike(api.held({"arange": float_, "ones": float_})),
        "sharded": api.alike(api.COUNT),
        "parameters": api.alike(api.COUNT),
        "compared": api.alike(api.by_name(api.many(api.COUNT))),
        "differing": api.many(api.held(DIFFERENCE)),
        "parted": api.alike(api.many(api.LINE)),
        "reference_off": api.by_name(api.SIZE),
        **more,
    }
    built = [{**compared, "precision": api.exactly(precision)} for precision in precisions]
    return {"buffers": api.Kind(built, [None] * len(precisions)), "logits": api.Kind(_logits(at))}


def _logits(at: api.Position) -> api.Facts:
    tokens = at.params.tokens
    lengths = [str(n) for n in (*LENGTHS, tokens) if n <= tokens]
    devices = ("cpu",) if at.lane is api.Lane.CPU else ("cpu", "cuda")  # where references are built
    return {
        "parameters": api.COUNT,
        "unequal_parameters": api.many(api.LINE),
        "reference": api.one_of(*devices),
        "first": api.maybe(api.COUNT),
        "after": api.COUNT,
        "differing": api.COUNT,
        "greatest": api.held(dict.fromkeys(lengths, api.SIZE)),
        "apart": api.many(api.SIZE, tokens),
        "reference_off": api.SIZE,
    }


CASTS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""The dtype in which zero.Init makes what a constructor was asked for in float32."""


class Figures(NamedTuple):
    """What ``assert_close`` reports of a buffer; None where no figure is documented."""

    mismatched: int
    greatest: float | None = None
    place: tuple[int, ...] | None = None
    relative: float | None = None
    relative_place: tuple[int, ...] | None = None
    dtype: str | None = None


EQUAL = Figures(0)


@dataclass(frozen=True)
class Documented:
    """The figures that document the bug."""

    figures: Mapping[api.Lane, Mapping[tuple[str, str], Figures]]
    """By lane, precision and the end of a buffer's name. Other buffers may have any values."""
    first: int
    """The first position, from 0, whose logits are wrong; those of all later ones are wrong too."""


def facts(differences: Iterable[Any]) -> list[dict[str, Any]]:
    """What to record of the differences that ``harness.detectors.buffers`` found."""
    return [
        asdict(d)
        | {"dtype": str(d.dtype), "expected_dtype": str(d.expected_dtype)}
        | {"relative": api.named(d.relative)}
        for d in differences
    ]


def diverging(
    ours: Tensor, references: Mapping[str, Tensor], lengths: Iterable[int] = LENGTHS
) -> dict[str, Any]:
    """What to record of a model's logits, [batch, positions, vocabulary], and of the references'.

    The model is compared with the reference that agrees for the most positions. ``first`` is the
    first position, from 0, at which any logit differs, or None; ``after`` counts the positions from
    there on, and ``differing`` those that differ. ``greatest`` has the greatest difference within
    the first so many positions, for each of ``lengths`` and for all; ``apart`` has it by position.
    """
    apart = {
        name: (ours - theirs).abs().float().amax(dim=(0, 2)).cpu()
        for name, theirs in references.items()
    }
    best = max(apart, key=lambda name: _agreeing(apart[name]))
    distance, length = apart[best], len(apart[best])
    position = _agreeing(distance)
    return {
        "reference": best,
        "first": None if position == length else position,
        "after": length - position,
        "differing": int(distance.count_nonzero()),
        "greatest": {str(n): float(distance[:n].max()) for n in [*lengths, length] if n <= length},
        "apart": distance.tolist(),
    }


def _agreeing(distance: Tensor) -> int:
    """The number of positions before the first difference; NaN is a difference."""
    places = distance.nonzero()
    return int(places[0]) if len(places) else len(distance)


def beyond(difference: BufferRecord, rounding: float) -> bool:
    """Whether a difference is more than rounding; another dtype is, and so is NaN."""
    return difference["dtype"] != difference["expected_dtype"] or not api.near(
        difference["greatest"], 0.0, within=rounding
    )


def unlike_reference(records: api.Records, documented: Documented) -> api.Finding | None:
    """Some buffer or logit is not the reference's; documented if all figures are."""
    built, answers = records.of("buffers"), records.of("logits")
    odd = list(dict.fromkeys(_no_reference(records)))
    if odd:
        return api.Finding("\n".join(odd), ranks=records.ranks, documented=False)
    wrong_buffers = [
        (_precision(record), difference)
        for record in built
        for difference in _differences(record)
        if beyond(difference, ROUNDING[api.Lane(record["lane"])])
    ]
    if not wrong_buffers and all(answer["first"] is None for answer in answers):
        return None
    doubts = [doubt for record in built for doubt in _unlike(record, documented.figures)]
    doubts += [doubt for answer in answers for doubt in _diverging_unlike(answer, documented.first)]
    layers_alike: dict[tuple[str, str], BufferRecord] = {}
    for precision, difference in wrong_buffers:  # each layer and each rank repeats it
        layers_alike.setdefault((precision, difference["name"].rpartition(".")[2]), difference)
    lines = [_described(precision, found) for (precision, _), found in layers_alike.items()]
    names = {name for record in built for name in record["compared"]}
    return api.Finding(
        message="\n".join([*dict.fromkeys(doubts), *lines, *map(_diverges, answers[:1])]),
        parameters=tuple(dict.fromkeys(d["name"] for _, d in wrong_buffers if d["name"] in names)),
        step=0,  # buffers are wrong as soon as the model is built
        ranks=records.ranks,
        magnitude=max((difference["greatest"] for _, difference in wrong_buffers), default=None),
        unit=UNIT,
        documented=bool(wrong_buffers and answers) and not doubts,
    )


def _precision(record: api.Record) -> str:
    return str(record.get("precision", "bf16"))


def _no_reference(records: api.Records) -> Iterator[str]:
    """Why the reference proves nothing: it is not a LLaMA, or it has other weights."""
    for record in records.of("buffers"):
        for name, off in {**record["reference_off"], **record.get("turned_off", {})}.items():
            if not api.near(off, 0.0, within=PLAIN):
                yield f"the reference's {name} is {off:.3g} off plain torch's"
    for answer in records.of("logits"):
        off = answer["reference_off"]
        if not api.near(off, 0.0, within=PLAIN_LOGITS):
            yield f"the reference's logits are off by {off:.3g} of plain torch's"
        if answer["unequal_parameters"]:
            yield f"the weights are not the reference's: {', '.join(answer['unequal_parameters'])}"


def _tokens(answer: api.Record) -> int:
    """The number of tokens whose logits were compared."""
    return len(answer["apart"])


def _differences(record: api.Record) -> Sequence[BufferRecord]:
    return [*record["differing"], *record.get("turned", ())]


def _unlike(
    record: api.Record, documented: Mapping[api.Lane, Mapping[tuple[str, str], Figures]]
) -> Iterator[str]:
    """Where a rank's buffers of one precision differ from the documented figures."""
    by_name = {difference["name"]: _figures(difference) for difference in _differences(record)}
    compared = dict.fromkeys([*record["compared"], *by_name])
    for (precision, buffer), figures in documented[api.Lane(record["lane"])].items():
        if precision != _precision(record):
            continue
        names = [name for name in compared if name.endswith(buffer)]
        if not names:
            yield f"{precision}: nothing called {buffer} was compared"
        for name in names:
            figures_of = zip(Figures._fields, by_name.get(name, EQUAL), figures, strict=True)
            odd = [
                f"{field.replace('_', ' ')} is {actual}, where {expected} is documented"
                for field, actual, expected in figures_of
                if expected is not None and actual != expected
            ]
            if odd:
                yield f"{precision} {name}: {', '.join(odd)}"


def _figures(difference: BufferRecord) -> Figures:
    return Figures(
        difference["mismatched"],
        difference["greatest"],
        tuple(difference["place"][-2:]),  # some releases have more dimensions, of size 1
        float(difference["relative"]),
        tuple(difference["relative_place"][-2:]),
        difference["dtype"],
    )


def _diverging_unlike(answer: api.Record, position: int) -> Iterator[str]:
    """Where logits do not differ at exactly the positions from the documented one on."""
    if answer["first"] is None:
        yield f"the logits of {_tokens(answer)} tokens do not differ"
    elif answer["first"] != position:
        yield f"the logits differ from position {answer['first']} on, and not from {position}"
    elif answer["differing"] != answer["after"]:
        yield f"{answer['after'] - answer['differing']} later positions have equal logits again"


def _described(precision: str, difference: BufferRecord) -> str:
    figures, elements = _figures(difference), difference["elements"]
    dtypes = f"{difference['dtype']} instead of {difference['expected_dtype']}; "
    return (
        f"{precision} {difference['name']}: "
        f"{dtypes if difference['dtype'] != difference['expected_dtype'] else ''}"
        f"{figures.mismatched} of {elements} elements ({figures.mismatched / elements:.1%}) "
        f"differ, by up to {figures.greatest:g} at {figures.place}, relatively by up to "
        f"{figures.relative:g} at {figures.relative_place}"
    )


def _diverges(answer: api.Record) -> str:
    if answer["first"] is None:
        return f"the logits of {_tokens(answer)} tokens are the same"
    greatest = max(answer["greatest"].values())
    return (
        f"the logits of {_tokens(answer)} tokens differ from position {answer['first']} on, by up "
        f"to {greatest:.3g}; the weights are bitwise equal"
    )


def under_zero_init(records: api.Records, constructor: str) -> api.Exercise:
    """zero.Init was active while every model was built.

    The evidence is what ``constructor``, a function of torch, returned when it was asked for
    float32: a tensor of zero.Init's own precision.
    """
    built = records.of("buffers")
    for record in built:
        where, came = f"rank {record['rank']}, {_precision(record)}", record["casts"][constructor]
        if not record["sharded"] == record["parameters"] > 0:
            why = f"zero.Init sharded {record['sharded']} of {record['parameters']} parameters"
            return api.Exercise(False, f"{where}: {why}")
        if came != CASTS[_precision(record)]:
            return api.Exercise(
                False, f"{where}: torch.{constructor}, asked for float32, gave {came}"
            )
        if not record["compared"]:
            return api.Exercise(False, f"{where}: the model has no buffer")
    if not built:
        return api.Exercise(False, "no model was built")
    came = ", ".join(dict.fromkeys(f"{r['casts'][constructor]} ({_precision(r)})" for r in built))
    return api.Exercise(
        True,
        f"zero.Init sharded all {built[0]['parameters']} parameters, and torch.{constructor}, "
        f"asked for float32, gave {came}",
    )


def compared_beyond(records: api.Records, position: int) -> api.Exercise:
    """Logits were compared at more positions than those before ``position``, from 0."""
    tokens = min(map(_tokens, records.of("logits")), default=0)
    text = f"the logits of {tokens} tokens were compared"
    return api.Exercise.of(tokens > position, text)


def weights_differ(records: api.Records) -> dict[str, bool]:
    """The bug leaves the weights right."""
    unequal = any(answer["unequal_parameters"] for answer in records.of("logits"))
    return {"a parameter differs from the reference's": unequal}


def ranks_differ(records: api.Records) -> dict[str, bool]:
    """Every rank is wrong in the same way."""
    return {"a buffer differs between ranks": any(r["parted"] for r in records.of("buffers"))}


def by_position(trials: api.Trials) -> Iterator[api.Picture]:
    """A picture of how far the logits are from the reference's, at each position of the text."""
    yield api.Lines(
        "How far the logits are from the reference's",
        "with the bug they differ from one position on, and more and more after it",
        [
            (variant, place, distance)
            for variant, records in trials.items()
            for answer in records.of("logits", 0)
            for place, distance in enumerate(answer["apart"])
        ],
        x="position",
        y="greatest difference of a logit",
    )
