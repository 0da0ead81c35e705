"""Changed records for a scenario's own functions. The plan of the records would refuse most."""

from __future__ import annotations

from typing import Any

from harness.bugs import catalog
from scenarios.deepspeed._loss_scale import LIMIT
from scenarios.megatron_core.tied_embedding_order import cells
from tests.tampering.changes import (
    Change,
    Table,
    add,
    cases,
    drop,
    during,
    nth,
    of,
    recorded_trial,
    times,
    to,
    within,
)

Records = list[dict[str, Any]]

# fp16_overflow and its silent sibling. The first nan is at step 92, the exception at step 105.


def leave(**bits: float) -> Change:
    """Set the headroom (bits) of a step's tensors: by name, or of ``all`` of them."""

    def change(step: dict[str, Any]) -> None:
        for name in step["headroom"]:
            headroom = bits.get(name.replace(" ", "_"), bits.get("all"))
            if headroom is not None:
                step["headroom"][name], step["largest"][name] = headroom, LIMIT / 2**headroom

    return change


def near_the_limit(step: dict[str, Any]) -> None:
    leave(all=max(0.1, *step["headroom"].values()))(step)


def skipped_once(records: Records) -> None:
    previous, step = of(records, "step")[-2:]
    step.update(skipped=1, weights=previous["weights"], lr=previous["lr"])


def going_on(pattern: str) -> Change:
    """Continue as stage 0 does, at the minimum, with steps that are skipped (x) and taken (.)."""

    def change(records: Records) -> None:
        drop("exception")(records)
        step = of(records, "step")[-1]
        place = records.index(step) + 1
        step["skipped"] += 1  # what raised
        knobs = catalog.scenario("fp16_overflow").params
        rate = (knobs.lr - knobs.first_lr) / knobs.ramp
        for n in range(1, len(pattern) + 1):
            skipped, progress = (pattern[:n].count(mark) for mark in "x.")
            facts = {
                "step": step["step"] + n,
                "skipped": step["skipped"] + skipped,
                "weights": step["weights"] + progress,
                "lr": step["lr"] + rate * progress,
            }
            records.insert(place + n - 1, {**step, **facts})

    return change


def silent_with_room(records: Records) -> None:
    going_on("x" * 9 + "." + "x" * 9)(records)
    for step in of(records, "step"):
        leave(all=5.0)(step)


def in_first_step(change: Change) -> Change:
    """Make the change in the first step."""
    return nth("step", 0, change)


TEXT = nth("exception", 0, to(text="Current loss scale already at minimum"))
MINIMUM = nth("setup", 0, within("scaler", to(minimum=2.0)))

OVERFLOW: Table = {
    "fp16_overflow buggy 1 records": [
        (nth("step", -1, add("skipped", 1)), "14 skipped steps, where the loss scaler allows 13"),
        (MINIMUM, "where the loss scaler allows 12"),
        (TEXT, "rank 1: not the documented exception"),
        (drop("exception"), "raised on ranks [0] alone"),
        (drop("setup"), "rank 1 has no dynamic loss scaler"),
    ],
    "fp16_overflow buggy 1 exception": [
        (to(type="RuntimeError"), "rank 1: not the documented exception but RuntimeError"),
        (add("step", -1), "the ranks do not agree"),
    ],
    "fp16_overflow buggy * records": [(drop("exception"), "13 steps were skipped, but")],
    "fp16_overflow buggy * step": [
        (to(loss=3.0), "every loss before that was finite"),
        (leave(all=5.0), "none of the watched tensors had overflowed"),
    ],
    "fp16_overflow fixed 1 records": [
        (nth("step", -1, to(loss="nan")), "0 steps were skipped, but nothing was raised"),
        (drop("step", -1), "rank 1 took 169 of 170 steps"),
        (skipped_once, "1 steps were skipped, though every loss was finite"),
        (nth("step", 4, add("weights", 1)), "the weights are not those of rank 0"),
        (nth("step", 4, times("lr", 2)), "the next rate is"),
        (nth("step", 4, times("loss_scale", 0.25)), "was taken: the scale went"),
        (nth("begun", 0, times("got", 2)), "rank 1, step 1: the optimizer got"),
    ],
    "fp16_overflow_stage0 fp16_overflow:fixed 1 records": [
        (drop("step", -1), "rank 1 took 169 of 170 steps"),
        (skipped_once, "1 steps were skipped, though every loss was finite"),
    ],
    "fp16_overflow_stage0 fp16_overflow:buggy * records": [
        (drop("exception"), "only 0 steps were skipped at the minimum"),
        (going_on("x" * 8), "only 9 steps were skipped at the minimum"),
        (going_on("xx." * 10), "of the steps since 105, only 21 were skipped"),
        (silent_with_room, "none of the watched tensors had overflowed"),
        (TEXT, "not the documented exception"),
    ],
    "fp16_overflow_stage0 buggy 1 records": [
        (drop("step", -1), "rank 1 took 169 of 170 steps"),
        (nth("step", -1, add("skipped", 1)), "the ranks do not agree"),
    ],
}


# rope_zero_init


def figure(**facts: Any) -> Change:
    return nth("buffers", 0, within("differing", to(**facts)))


def one_difference_too_many(records: Records) -> None:
    bf16, fp32, _ = of(records, "buffers")
    fp32["differing"].append(bf16["differing"][0])


CASTS = {"arange": "float32", "ones": "bfloat16"}


ROTARY: Table = {
    "rope_zero_init buggy 0 records": [
        (figure(mismatched=329319), "mismatched is "),
        (figure(greatest=1.9921875), "greatest is "),
        (figure(place=[1148, 3]), "place is "),
        (figure(relative=8319.0), "relative is "),
        (figure(relative_place=[3657, 12]), "relative place is "),
        (lambda records: of(records, "buffers")[0]["differing"].clear(), "mismatched is 0, where"),
        (one_difference_too_many, "mismatched is 329320, where 0 is documented"),
    ],
    "rope_zero_init buggy 0 logits": [
        (to(first=258), "the logits differ from position 258 on, and not from"),
        (add("differing", -1), "1 later positions have equal logits again"),
    ],
    "rope_zero_init buggy * records": [(drop("logits"), "rotary_emb.cos_cached: 329320 of 524288")],
    "rope_zero_init buggy * buffers": [(to(lane="gpu"), "329320, where 329332 is documented")],
    "rope_zero_init fixed 1 logits": [
        (to(unequal_parameters=["head"]), "not the reference's: head")
    ],
}


# tied_embedding_order


def in_last_cell(change: Change) -> Change:
    """Make the change in the last cell, which the optimizer steps with."""
    return nth("cell", -1, change)


def a_quarter_more(cell: dict[str, Any]) -> None:
    cell["pieces"][0]["row"][3] += 0.25


def row(*values: float) -> Change:
    """Give the first piece of a cell these shares of the gradients, beginning with g0."""

    def change(cell: dict[str, Any]) -> None:
        cell["pieces"][0]["row"][: len(values)] = values

    return change


def whole(cell: dict[str, Any]) -> None:
    """Add the gradients up instead of averaging them."""
    cell["pieces"][0]["row"] = [1.0 if c else 0.0 for c in cell["pieces"][0]["row"]]


def not_added_up(cell: dict[str, Any]) -> None:
    for piece in cell["pieces"]:
        piece["row"][cells.SHARED] = 0.5


def never_summed(records: Records) -> None:
    *_, scattered, summed = of(records, "cell")
    summed["pieces"] = scattered["pieces"]


ORDER: Table = {
    "tied_embedding_order fixed 2 records": [(in_last_cell(a_quarter_more), "g3, not added up")],
    "tied_embedding_order buggy 1 records": [
        (in_last_cell(whole), "rank 1 steps with g0+g1+g3, not added up, which misses g2"),
        (in_last_cell(row(0.0, 0.5, 0.5, 0.5, 1.5)), "which misses g0"),
    ],
    "tied_embedding_order buggy * records": [
        (in_last_cell(not_added_up), "not added up"),
        (never_summed, "rank 1 steps with (g0+g1)/2, which misses g2 and g3"),
    ],
    "tied_embedding_order fixed * records": [(in_last_cell(not_added_up), "not added up")],
    "tied_embedding_order buggy 2 records": [
        (in_last_cell(row(0.5, 0.5, 0.0, 0.5)), "(g0+g1)/2+g3/2, which misses")
    ],
    "tied_embedding_order fixed 2 rest": [
        (to(apart=0.25), "rank 2: the copies are 0.25 apart before any step"),
        (to(dtypes=["bfloat16"]), "rank 2: its gradients are bfloat16, and not float32"),
        (to(owned={"linear.0": [1.5]}), "steps linear.0 with 1.5, but its replicas' mean is 3.5"),
        (to(owned={"linear.0": [3.5, 7.0]}), "rank 2 steps linear.0 with 3.5, 7"),
    ],
}


# tied_embedding_training


def missed(**shares: float) -> Change:
    """Let a rank that steps miss these shares of these gradients, and nothing else."""

    def change(step: dict[str, Any]) -> None:
        step["missed"] = {name: shares.get(name, 1.0) for name in step["missed"]}

    return change


TRAINING: Table = {
    "tied_embedding_training buggy 0 records": [
        (in_first_step(to(apart=0.0)), "differ from step 2 on")
    ],
    "tied_embedding_training buggy 1 records": [
        (in_first_step(to(replicas_differ=["linear.0"])), "the data-parallel replicas differ")
    ],
    "tied_embedding_training fixed 1 records": [
        (in_first_step(to(replicas_differ=["linear.0"])), "the data-parallel replicas differ"),
        (in_first_step(missed(g2=0.0)), "the tied copies agree"),
    ],
    "tied_embedding_training fixed 2 records": [
        (in_first_step(add("loss", 0.01)), "its loss is"),
        (
            in_first_step(missed(g3=0.0)),
            "neither with the mean gradient of all nor with that without",
        ),
        (in_first_step(add("others_off", 0.01)), "another weight with a gradient that is off by"),
        (in_first_step(add("weights_off", 0.01)), "from where AdamW has them"),
    ],
    "tied_embedding_training buggy * step": [
        (missed(none=0.0), "the data-parallel replicas agree")
    ],
    "tied_embedding_training buggy 1 step": [(missed(none=0.0), "replicas agree; rank 2 stepped")],
}


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
    loaded["changed"] = [{**loaded["changed"][0], "name": "2.norm.bias (fp32)", "reset": False}]


OTHERS: Table = {
    "tied_resume_norm fixed 0 records": [(nth("step", -1, astray), "rank 0, step 6: ")],
    "bf16_clip buggy * records": [
        (in_first_step(clipped_on_one_rank), "3.input_layernorm.weight got 1 times")
    ],
    "bf16_clip buggy 0 checkpoint": [(to(failures=[]), "the documented check passes")],
    "bf16_clip buggy * step": [(to(differing={}), "no drift was seen")],
    "clip_max_for_min buggy 0 records": [
        (
            in_first_step(lambda step: step.update(ratio=1.0 / step["gradient"])),
            "120 are wrong: 11 not clipped",
        )
    ],
    "pipeline_gas_twice fixed * records": [
        (in_first_step(times("loss", 0.5)), "the loss of step 1 is")
    ],
    "tied_resume_norm buggy 1 loaded": [
        (within("changed", to(reset=False)), "0.99609 before, 1 after")
    ],
    "tied_resume_norm buggy 0 loaded": [(on_the_first_rank_too, "rank 0: ")],
    "tied_resume_norm fixed 1 loaded": [
        (of_a_master_copy, "rank 1: 2.norm.bias (fp32): 32 of 32 values differ")
    ],
    **{
        f"{trial} 0 records": [
            (in_first_step(less_of_a_gradient), "times plain torch's gradient"),
            (in_first_step(astray), "is 0.5 of a step away from where torch's own step leads"),
            (in_first_step(stale), "is not its fp32 master rounded"),
        ]
        for trial in ("bf16_clip buggy", "bf16_clip fixed", "tied_resume_norm buggy")
    },
}

DOUBTED = [case for table in (OVERFLOW, ROTARY, ORDER, TRAINING, OTHERS) for case in cases(table)]
"""``detect`` finds something that is not the documented symptom, and says why."""


def every_other_cut_elsewhere(layout: dict[str, Any]) -> None:
    layout["owned"] = [72, 128] if layout["rank"] % 2 else layout["owned"]


def every_row(*values: float, rank: int | None = None) -> Change:
    """Give every piece of a cell, or of the cells of one rank, these shares of the gradients."""

    def change(cell: dict[str, Any]) -> None:
        for piece in cell["pieces"] if rank in (None, cell["rank"]) else []:
            piece["row"] = list(values)

    return change


def as_on_rank_0(step: dict[str, Any]) -> None:
    rank_0 = recorded_trial("tied_embedding_training", "fixed").of("step", 0)[0]
    step["own_gradient"] = rank_0["own_gradient"]


NOT_TRIGGERED: Table = {
    "bf16_clip fixed * records": [
        (in_first_step(to(grad_norm=0.05, gradient=0.05)), "was active in 9 of 10")
    ],
    "fp16_overflow fixed * step": [(near_the_limit, "no watched tensor passed 65504 in 170")],
    "fp16_overflow fixed * records": [(list.clear, "no step was recorded")],
    "rope_zero_init fixed 1 buffers": [
        (to(sharded=20), "rank 1, bf16: zero.Init sharded 20 of 21 parameters"),
        (to(casts=CASTS), "bf16: torch.arange, asked for float32, gave float32"),
        (to(compared={}), "rank 1, bf16: the model has no buffer"),
    ],
    "rope_zero_init fixed * logits": [
        (lambda logits: logits.update(apart=logits["apart"][:257]), "the logits of 257 tokens")
    ],
    "tied_embedding_order fixed * records": [
        (nth("cell", 0, every_row(1, *[0] * 7)), "were not all different"),
        (nth("cell", 0, every_row(*[0] * 8, rank=3)), "not all different, or one was 0"),
    ],
    "tied_embedding_order fixed * layout": [
        (to(buffer=[0, 128]), "elements 0 to 128 and 0 to 128"),
        (every_other_cut_elsewhere, "owned 120 and 120 elements of their copies, which"),
    ],
    "tied_embedding_training fixed 3 records": [
        (in_first_step(to(own_gradient=0.0)), "equal, 0 or missing in 1 of 20 steps"),
        (in_first_step(as_on_rank_0), "equal, 0 or missing in 1 of 20 steps"),
    ],
    "tied_resume_norm fixed 1 loaded": [
        (lambda loaded: loaded["trained"].remove(NORM), "rank 1 had saved only initial")
    ],
}
UNEXERCISED = cases(NOT_TRIGGERED)
"""``exercised`` says that the bug was not triggered, and why."""


def losses_more(records: Records) -> None:
    for kind in ("begun", "step"):
        record = of(records, kind)[0]
        record.update({n: record[n] + 0.1 for n in ("loss", "reference_loss") if n in record})


def unlike_one_process(step: dict[str, Any]) -> None:
    step["plain_loss"] += 1e-3
    step["loss"] = step["loss"] and step["loss"] + 1e-3


def another_value(weight: dict[str, Any]) -> None:
    weight["values"][5] += 1e-4


another_text = nth("setup", 0, within("corpus", to(sha256="0" * 64)))

DIFFERENT: Table = {
    "bf16_clip reference 0 records": [(in_first_step(add("loss", 0.01)), "where one rank has")],
    "fp16_overflow control 1 records": [
        (nth("step", -1, leave(layer_0_scores=2.9)), "went below the threshold at step 170")
    ],
    "fp16_overflow fixed * records": [(another_text, "did not train on the same text")],
    "fp16_overflow fixed 0 records": [(losses_more, "different losses in the first step")],
    "tied_embedding_training fixed * records": [(in_first_step(unlike_one_process), "loss")],
    "tied_embedding_training fixed * weight": [(another_value, "tied weight of rank 2")],
    "tied_embedding_order buggy 0 records": [
        (nth("cell", number, a_quarter_more), f"buggy, {when}: rank 0 holds")
        for number, when in enumerate(
            ("before", "after reduce-scatter", "after embedding all-reduce")
        )
    ],
    "tied_embedding_order control 0 records": [
        (nth("cell", 0, a_quarter_more), "control, before: rank 0 holds")
    ],
}
DISAGREEING = cases(DIFFERENT)
"""``agree`` says how the trials of a run disagree."""


LATE = range(82, 92)
"""The last steps before the first nan."""

FIRED: Table = {
    "fp16_overflow buggy * step": [
        (during(add("loss", 1.0), LATE), "the loss rises by 0.5 (mean of ten steps)"),
        (during(times("grad_norm", 3.0), LATE), "the gradient norm doubles (median of ten steps)"),
    ],
    "fp16_overflow buggy * records": [
        (nth("step", 90, to(grad_norm=100.0)), "one gradient norm is twice the last twenty")
    ],
    "bf16_clip buggy 1 records": [
        (in_first_step(add("grad_norm", 1e-3)), "the global gradient norm differs between ranks")
    ],
}
FIRING = cases(FIRED)
"""An insufficient check is silent on the bug, but fires on this."""


def owned_by_nobody(cell: dict[str, Any]) -> None:
    next(piece for piece in cell["pieces"] if not piece["owned"])["row"][0] = 7.0


NOTHING = "no symptom"
BELIEVED = cases(
    {
        "fp16_overflow control * records": [(skipped_once, NOTHING)],
        "fp16_overflow control * step": [(to(grad_norm=None), NOTHING)],
        "tied_embedding_order fixed 0 records": [(in_last_cell(owned_by_nobody), NOTHING)],
    }
)
"""This is possible: a step is skipped for another reason, a release reports no gradient norm, and
nobody steps with this piece of a copy."""
