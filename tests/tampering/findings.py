"""Changed records for a scenario's own functions. The plan of the records would refuse most."""

from __future__ import annotations

from typing import Any

from scenarios.deepspeed.fp16_overflow import scenario as fp16_overflow
from scenarios.deepspeed.fp16_overflow.loss_scale import LIMIT
from scenarios.megatron_core.tied_embedding_order import grad_buffer as cells
from tests.tampering.changes import (
    RECORDS,
    Case,
    Change,
    Row,
    during,
    less,
    more,
    nth,
    of,
    recorded_trial,
    times,
    to,
    within,
)

Records = list[dict[str, Any]]

# fp16_overflow and its silent sibling. The first nan is at step 92, the exception at step 105.

SIBLING, RUN = "fp16_overflow_stage0", "fp16_overflow:"


def leave(**bits: float) -> Change:
    """Set the headroom (bits) of a step's tensors: by name, or of ``all`` of them."""

    def change(step: dict[str, Any]) -> None:
        for name in step["headroom"]:
            left = bits.get(name.replace(" ", "_"), bits.get("all"))
            if left is not None:
                step["headroom"][name], step["largest"][name] = left, LIMIT / 2**left

    return change


def near_the_limit(step: dict[str, Any]) -> None:
    leave(all=max(0.1, *step["headroom"].values()))(step)


def skipped_once(records: Records) -> None:
    before, last = of(records, "step")[-2:]
    last.update(skipped=1, weights=before["weights"], lr=before["lr"])


def going_on(pattern: str) -> Change:
    """Continue as stage 0 does, at the minimum, with steps that are skipped (x) and taken (.)."""

    def change(records: Records) -> None:
        less("exception")(records)
        last = of(records, "step")[-1]
        place = records.index(last) + 1
        last["skipped"] += 1  # what raised
        knobs = fp16_overflow.Params
        rate = (knobs.lr - knobs.first_lr) / knobs.ramp
        for n in range(1, len(pattern) + 1):
            skipped, taken = (pattern[:n].count(mark) for mark in "x.")
            more = {
                "step": last["step"] + n,
                "skipped": last["skipped"] + skipped,
                "weights": last["weights"] + taken,
                "lr": last["lr"] + rate * taken,
            }
            records.insert(place + n - 1, {**last, **more})

    return change


SILENT = "x" * 9 + "." + "x" * 9


def silent_and(*changes: Change) -> Change:
    def change(records: Records) -> None:
        for each in (going_on(SILENT), *changes):
            each(records)

    return change


def roomy(records: Records) -> None:
    for step in of(records, "step"):
        leave(all=5.0)(step)


TEXT = nth("exception", 0, to(text="Current loss scale already at minimum"))
MINIMUM = nth("setup", 0, within("scaler", to(minimum=2.0)))

OVERFLOW: list[Row] = [
    (
        "fp16_overflow",
        "buggy",
        1,
        RECORDS,
        nth("step", -1, more("skipped", 1)),
        "rank 1: 14 skipped steps, where the loss scaler allows 13",
    ),
    ("fp16_overflow", "buggy", 1, RECORDS, MINIMUM, "where the loss scaler allows 12"),
    ("fp16_overflow", "buggy", 1, RECORDS, TEXT, "rank 1: not the documented exception"),
    (
        "fp16_overflow",
        "buggy",
        1,
        "exception",
        to(type="RuntimeError"),
        "rank 1: not the documented exception but RuntimeError",
    ),
    ("fp16_overflow", "buggy", 1, "exception", more("step", -1), "the ranks do not agree"),
    ("fp16_overflow", "buggy", 1, RECORDS, less("exception"), "raised on ranks [0] alone"),
    (
        "fp16_overflow",
        "buggy",
        None,
        RECORDS,
        less("exception"),
        "13 steps were skipped, but nothing was raised",
    ),
    ("fp16_overflow", "buggy", 1, RECORDS, less("setup"), "rank 1 has no dynamic loss scaler"),
    ("fp16_overflow", "buggy", None, "step", to(loss=3.0), "every loss before that was finite"),
    (
        "fp16_overflow",
        "buggy",
        None,
        "step",
        leave(all=5.0),
        "none of the watched tensors had overflowed",
    ),
    (
        "fp16_overflow",
        "fixed",
        1,
        RECORDS,
        nth("step", -1, to(loss="nan")),
        "0 steps were skipped, but nothing was raised",
    ),
    ("fp16_overflow", "fixed", 1, RECORDS, less("step", -1), "rank 1 took 169 of 170 steps"),
    (
        "fp16_overflow",
        "fixed",
        1,
        RECORDS,
        skipped_once,
        "1 steps were skipped, though every loss was finite",
    ),
    (
        "fp16_overflow",
        "fixed",
        1,
        RECORDS,
        nth("step", 4, more("weights", 1)),
        "the weights are not those of rank 0",
    ),
    ("fp16_overflow", "fixed", 1, RECORDS, nth("step", 4, times("lr", 2)), "the next rate is"),
    (
        "fp16_overflow",
        "fixed",
        1,
        RECORDS,
        nth("step", 4, times("loss_scale", 0.25)),
        "was taken: the scale went",
    ),
    (
        "fp16_overflow",
        "fixed",
        1,
        RECORDS,
        nth("begun", 0, times("got", 2)),
        "rank 1, step 1: the optimizer got",
    ),
    (SIBLING, RUN + "fixed", 1, RECORDS, less("step", -1), "rank 1 took 169 of 170 steps"),
    (
        SIBLING,
        RUN + "fixed",
        1,
        RECORDS,
        skipped_once,
        "1 steps were skipped, though every loss was finite",
    ),
    (
        SIBLING,
        RUN + "buggy",
        None,
        RECORDS,
        less("exception"),
        "only 0 steps were skipped at the minimum",
    ),
    (
        SIBLING,
        RUN + "buggy",
        None,
        RECORDS,
        going_on("x" * 8),
        "only 9 steps were skipped at the minimum",
    ),
    (
        SIBLING,
        RUN + "buggy",
        None,
        RECORDS,
        going_on("xx." * 10),
        "of the steps since 105, only 21 were skipped",
    ),
    (
        SIBLING,
        RUN + "buggy",
        None,
        RECORDS,
        silent_and(roomy),
        "none of the watched tensors had overflowed",
    ),
    (SIBLING, RUN + "buggy", None, RECORDS, TEXT, "not the documented exception"),
    (SIBLING, "buggy", 1, RECORDS, less("step", -1), "rank 1 took 169 of 170 steps"),
    (SIBLING, "buggy", 1, RECORDS, nth("step", -1, more("skipped", 1)), "the ranks do not agree"),
]


# rope_zero_init


def figure(fact: str, value: Any) -> Change:
    return nth("buffers", 0, within("differing", to(**{fact: value})))


def one_difference_too_many(records: Records) -> None:
    bf16, fp32, _ = of(records, "buffers")
    fp32["differing"].append(bf16["differing"][0])


ROTARY: list[Row] = [
    *(
        (
            "rope_zero_init",
            "buggy",
            0,
            RECORDS,
            figure(fact, value),
            f"{fact.replace('_', ' ')} is ",
        )
        for fact, value in (
            ("mismatched", 329319),
            ("greatest", 1.9921875),
            ("place", [1148, 3]),
            ("relative", 8319.0),
            ("relative_place", [3657, 12]),
        )
    ),
    (
        "rope_zero_init",
        "buggy",
        0,
        RECORDS,
        nth("buffers", 0, lambda built: built["differing"].pop()),
        "mismatched is 0, where 324796 is documented",
    ),
    (
        "rope_zero_init",
        "buggy",
        0,
        RECORDS,
        one_difference_too_many,
        "mismatched is 329320, where 0 is documented",
    ),
    ("rope_zero_init", "buggy", 0, "logits", to(first=258), "apart does not start at position 258"),
    (
        "rope_zero_init",
        "buggy",
        0,
        "logits",
        more("differing", -1),
        "apart does not have 62 positions",
    ),
    (
        "rope_zero_init",
        "buggy",
        None,
        RECORDS,
        less("logits"),
        "bf16 model.layers.0.self_attn.rotary_emb.cos_cached: 329320 of 524288",
    ),
    (
        "rope_zero_init",
        "buggy",
        None,
        "buffers",
        to(lane="gpu"),
        "mismatched is 329320, where 329332 is documented",
    ),
    (
        "rope_zero_init",
        "fixed",
        1,
        "logits",
        to(unequal_parameters=["lm_head.weight"]),
        "the weights are not the reference's: lm_head.weight",
    ),
]


# tied_embedding_order


def last(change: Change) -> Change:
    """The change in the last cell, which the optimizer steps with."""
    return nth("cell", -1, change)


def a_quarter_more(cell: dict[str, Any]) -> None:
    cell["pieces"][0]["row"][3] += 0.25


def row(*values: float) -> Change:
    """The first piece of a cell has these shares of the gradients, first of all of g0."""

    def change(cell: dict[str, Any]) -> None:
        cell["pieces"][0]["row"][: len(values)] = values

    return change


def whole(cell: dict[str, Any]) -> None:
    """The gradients are added up, and not averaged."""
    cell["pieces"][0]["row"] = [1.0 if c else 0.0 for c in cell["pieces"][0]["row"]]


def not_added_up(cell: dict[str, Any]) -> None:
    for piece in cell["pieces"]:
        piece["row"][cells.SHARED] = 0.5


def never_summed(records: Records) -> None:
    *_, scattered, summed = of(records, "cell")
    summed["pieces"] = scattered["pieces"]


ORDER: list[Row] = [
    ("tied_embedding_order", "fixed", 2, RECORDS, last(a_quarter_more), "g3, not added up"),
    (
        "tied_embedding_order",
        "buggy",
        1,
        RECORDS,
        last(whole),
        "rank 1 steps with g0+g1+g3, not added up, which misses g2",
    ),
    ("tied_embedding_order", "buggy", None, RECORDS, last(not_added_up), "not added up"),
    ("tied_embedding_order", "fixed", None, RECORDS, last(not_added_up), "not added up"),
    (
        "tied_embedding_order",
        "buggy",
        None,
        RECORDS,
        never_summed,
        "rank 1 steps with (g0+g1)/2, which misses g2 and g3",
    ),
    (
        "tied_embedding_order",
        "buggy",
        1,
        RECORDS,
        last(row(0.0, 0.5, 0.5, 0.5, 1.5)),
        "which misses g0",
    ),
    (
        "tied_embedding_order",
        "buggy",
        2,
        RECORDS,
        last(row(0.5, 0.5, 0.0, 0.5)),
        "rank 2 steps with (g0+g1)/2+g3/2, which misses g2",
    ),
    (
        "tied_embedding_order",
        "fixed",
        2,
        "rest",
        to(apart=0.25),
        "rank 2: the copies are 0.25 apart before any step",
    ),
    (
        "tied_embedding_order",
        "fixed",
        2,
        "rest",
        to(dtypes=["bfloat16"]),
        "rank 2: its gradients are bfloat16, and not float32",
    ),
    (
        "tied_embedding_order",
        "fixed",
        2,
        "rest",
        to(owned={"linear.0": [1.5]}),
        "steps linear.0 with 1.5, but its replicas' mean is 3.5",
    ),
    (
        "tied_embedding_order",
        "fixed",
        2,
        "rest",
        to(owned={"linear.0": [3.5, 7.0]}),
        "rank 2 steps linear.0 with 3.5, 7",
    ),
]


# tied_embedding_training


def missed(**shares: float) -> Change:
    """A rank that steps misses these gradients to such shares, and no other."""

    def change(step: dict[str, Any]) -> None:
        step["missed"] = {name: shares.get(name, 1.0) for name in step["missed"]}

    return change


FIRST: list[tuple[str, int | None, Change, str]] = [
    ("buggy", 1, to(replicas_differ=["linear.0"]), "the data-parallel replicas differ"),
    ("fixed", 1, to(replicas_differ=["linear.0"]), "the data-parallel replicas differ"),
    ("buggy", 0, to(apart=0.0), "differ from step 2 on"),
    ("fixed", 2, more("loss", 0.01), "its loss is"),
    ("fixed", 2, missed(g3=0.0), "neither with the mean gradient of all nor with that without one"),
    ("fixed", 2, more("others_off", 0.01), "another weight with a gradient that is off by"),
    ("fixed", 2, more("weights_off", 0.01), "from where AdamW has them"),
    ("fixed", 1, missed(g2=0.0), "the tied copies agree"),
]

TRAINING: list[Row] = [
    *(
        ("tied_embedding_training", variant, rank, RECORDS, nth("step", 0, change), says)
        for variant, rank, change, says in FIRST
    ),
    (
        "tied_embedding_training",
        "buggy",
        None,
        "step",
        missed(none=0.0),
        "the data-parallel replicas agree",
    ),
    (
        "tied_embedding_training",
        "buggy",
        1,
        "step",
        missed(none=0.0),
        "replicas agree; rank 2 stepped without g1",
    ),
]


# The others.


def less_of_a_gradient(step: dict[str, Any]) -> None:
    next(iter(step["got"].values()))[1] *= 0.9


def astray(step: dict[str, Any]) -> None:
    step["strayed"][next(iter(step["strayed"]))] = 0.5


def stale(step: dict[str, Any]) -> None:
    step["stale"] = [next(iter(step["got"]))]


def clipped_on_one_rank(step: dict[str, Any]) -> None:
    share = step["got"]["3.input_layernorm.weight"]
    share[1] = 1.0 if step["rank"] == 0 else share[1]


NORM = "tied_modules.embed.word_embeddings.norm.weight"


def on_the_first_rank_too(loaded: dict[str, Any]) -> None:
    loaded["changed"] = recorded_trial("tied_resume_norm", "buggy").of("loaded", 1)[0]["changed"]


def of_a_master_copy(loaded: dict[str, Any]) -> None:
    on_the_first_rank_too(loaded)
    first = loaded["changed"][0]
    loaded["changed"] = [{**first, "name": "2.norm.bias (fp32)", "reset": False}]


OTHERS: list[Row] = [
    *(
        (scenario, trial, 0, RECORDS, nth("step", 0, change), says)
        for scenario, trial in (
            ("bf16_clip", "buggy"),
            ("bf16_clip", "fixed"),
            ("tied_resume_norm", "buggy"),
        )
        for change, says in (
            (less_of_a_gradient, "times plain torch's gradient"),
            (astray, "is 0.5 of a step away from where torch's own step leads"),
            (stale, "is not its fp32 master rounded"),
        )
    ),
    ("tied_resume_norm", "fixed", 0, RECORDS, nth("step", -1, astray), "rank 0, step 6: "),
    (
        "bf16_clip",
        "buggy",
        None,
        RECORDS,
        nth("step", 0, clipped_on_one_rank),
        "rank 0, step 1: 3.input_layernorm.weight got 1 times",
    ),
    ("bf16_clip", "buggy", 0, "checkpoint", to(failures=[]), "the documented check passes"),
    ("bf16_clip", "buggy", None, "step", to(differing={}), "no drift was seen"),
    (
        "clip_max_for_min",
        "buggy",
        0,
        RECORDS,
        nth("step", 0, lambda step: step.update(ratio=1.0 / step["gradient"])),
        "120 are wrong: 11 not clipped, 108 raised",
    ),
    (
        "pipeline_gas_twice",
        "fixed",
        None,
        RECORDS,
        nth("step", 0, times("loss", 0.5)),
        "the loss of step 1 is",
    ),
    (
        "tied_resume_norm",
        "buggy",
        1,
        "loaded",
        within("changed", to(reset=False)),
        "0.99609 before, 1 after",
    ),
    ("tied_resume_norm", "buggy", 0, "loaded", on_the_first_rank_too, "rank 0: "),
    (
        "tied_resume_norm",
        "fixed",
        1,
        "loaded",
        of_a_master_copy,
        "2.norm.bias (fp32) is not a parameter",
    ),
]

DOUBTED = [Case(*row) for row in (*OVERFLOW, *ROTARY, *ORDER, *TRAINING, *OTHERS)]
"""``detect`` finds something that is not the documented symptom, and says why."""


def every_other_cut_elsewhere(layout: dict[str, Any]) -> None:
    if layout["rank"] % 2:
        layout["owned"] = [72, 128]


def zero_on_rank_3(cell: dict[str, Any]) -> None:
    if cell["rank"] == 3:
        for piece in cell["pieces"]:
            piece["row"] = [0.0] * 8


def equal_everywhere(cell: dict[str, Any]) -> None:
    for piece in cell["pieces"]:
        piece["row"] = [1.0] + [0.0] * 7


def as_on_rank_0(step: dict[str, Any]) -> None:
    first = recorded_trial("tied_embedding_training", "fixed").of("step", 0)[0]
    step["own_gradient"] = first["own_gradient"]


UNEXERCISED = [
    Case(*row)
    for row in [
        (
            "bf16_clip",
            "fixed",
            None,
            RECORDS,
            nth("step", 0, to(grad_norm=0.05, gradient=0.05)),
            "clipping was active in 9 of 10 steps",
        ),
        (
            "fp16_overflow",
            "fixed",
            None,
            "step",
            near_the_limit,
            "no watched tensor passed 65504 in 170 steps",
        ),
        (
            "fp16_overflow",
            "fixed",
            None,
            RECORDS,
            lambda records: records.clear(),
            "no step was recorded",
        ),
        (
            "rope_zero_init",
            "fixed",
            1,
            "buffers",
            to(sharded=20),
            "rank 1, bf16: zero.Init sharded 20 of 21 parameters",
        ),
        (
            "rope_zero_init",
            "fixed",
            1,
            "buffers",
            to(casts={"arange": "float32", "ones": "bfloat16"}),
            "rank 1, bf16: torch.arange, asked for float32, gave float32",
        ),
        (
            "rope_zero_init",
            "fixed",
            1,
            "buffers",
            to(compared={}),
            "rank 1, bf16: the model has no buffer",
        ),
        (
            "rope_zero_init",
            "fixed",
            None,
            "logits",
            lambda answer: answer.update(apart=answer["apart"][:257]),
            "the logits of 257 tokens were compared",
        ),
        (
            "tied_embedding_order",
            "fixed",
            None,
            RECORDS,
            nth("cell", 0, equal_everywhere),
            "the ranks' own gradients were not all different",
        ),
        (
            "tied_embedding_order",
            "fixed",
            None,
            RECORDS,
            nth("cell", 0, zero_on_rank_3),
            "the ranks' own gradients were not all different, or one was 0",
        ),
        (
            "tied_embedding_order",
            "fixed",
            None,
            "layout",
            to(buffer=[0, 128]),
            "elements 0 to 128 and 0 to 128",
        ),
        (
            "tied_embedding_order",
            "fixed",
            None,
            "layout",
            every_other_cut_elsewhere,
            "owned 120 and 120 elements of their copies, which have 128 and 128",
        ),
        (
            "tied_embedding_training",
            "fixed",
            3,
            RECORDS,
            nth("step", 0, to(own_gradient=0.0)),
            "equal, 0 or missing in 1 of 20 steps",
        ),
        (
            "tied_embedding_training",
            "fixed",
            3,
            RECORDS,
            nth("step", 0, as_on_rank_0),
            "equal, 0 or missing in 1 of 20 steps",
        ),
        (
            "tied_resume_norm",
            "fixed",
            1,
            "loaded",
            lambda loaded: loaded["trained"].remove(NORM),
            "rank 1 had saved only initial values of it",
        ),
    ]
]
"""``exercised`` says that the bug was not triggered, and why."""


def losses_more(records: Records) -> None:
    for kind in ("begun", "step"):
        first = of(records, kind)[0]
        first.update({n: first[n] + 0.1 for n in ("loss", "reference_loss") if n in first})


def unlike_one_process(step: dict[str, Any]) -> None:
    step["plain_loss"] += 1e-3
    step["loss"] = step["loss"] and step["loss"] + 1e-3


def another_value(weight: dict[str, Any]) -> None:
    weight["values"][5] += 1e-4


DIFFERENT: list[Row] = [
    (
        "bf16_clip",
        "reference",
        0,
        RECORDS,
        nth("step", 0, more("loss", 0.01)),
        "where one rank has",
    ),
    *(
        (
            "tied_embedding_order",
            variant,
            0,
            RECORDS,
            nth("cell", when, a_quarter_more),
            f"{variant}, {moment}: rank 0 holds",
        )
        for variant, when, moment in (
            ("buggy", 0, "before"),
            ("buggy", 1, "after reduce-scatter"),
            ("buggy", 2, "after embedding all-reduce"),
            ("control", 0, "before"),
        )
    ),
    (
        "fp16_overflow",
        "control",
        1,
        RECORDS,
        nth("step", -1, leave(layer_0_scores=2.9)),
        "control: the headroom went below the threshold at step 170",
    ),
    (
        "fp16_overflow",
        "fixed",
        None,
        RECORDS,
        nth("setup", 0, within("corpus", to(sha256="0" * 64))),
        "the variants did not train on the same text",
    ),
    ("fp16_overflow", "fixed", 0, RECORDS, losses_more, "different losses in the first step"),
    ("tied_embedding_training", "fixed", None, RECORDS, nth("step", 0, unlike_one_process), "loss"),
    ("tied_embedding_training", "fixed", None, "weight", another_value, "tied weight of rank 2"),
]

DISAGREEING = [Case(*row) for row in DIFFERENT]
"""``agree`` says how the trials of a run disagree."""


BEFORE_THE_NAN = range(82, 92)

FIRING = [
    Case(*row)
    for row in [
        (
            "fp16_overflow",
            "buggy",
            None,
            "step",
            during(more("loss", 1.0), BEFORE_THE_NAN),
            "the loss rises by 0.5 (mean of ten steps)",
        ),
        (
            "fp16_overflow",
            "buggy",
            None,
            "step",
            during(times("grad_norm", 3.0), BEFORE_THE_NAN),
            "the gradient norm doubles (median of ten steps)",
        ),
        (
            "fp16_overflow",
            "buggy",
            None,
            RECORDS,
            nth("step", 90, to(grad_norm=100.0)),
            "one gradient norm is twice the last twenty",
        ),
        (
            "bf16_clip",
            "buggy",
            1,
            RECORDS,
            nth("step", 0, more("grad_norm", 1e-3)),
            "the global gradient norm differs between ranks",
        ),
    ]
]
"""An insufficient check is silent on the bug, but fires on this."""


def owned_by_nobody(cell: dict[str, Any]) -> None:
    next(piece for piece in cell["pieces"] if not piece["owned"])["row"][0] = 7.0


BELIEVED = [
    Case("fp16_overflow", "control", None, RECORDS, skipped_once, "no symptom"),
    Case("fp16_overflow", "control", None, "step", to(grad_norm=None), "no symptom"),
    Case("tied_embedding_order", "fixed", 0, RECORDS, last(owned_by_nobody), "no symptom"),
]
"""This is possible: a step is skipped for another reason, a release reports no gradient norm, and
nobody steps with this piece of a copy."""
