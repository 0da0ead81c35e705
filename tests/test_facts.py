"""Facts of recorded runs that ranks tell otherwise: gone, empty, or odd. None is believed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.spec import Outcome
from tests.recording import FOLDER, Recording

Change = Callable[[dict[str, Any]], None]

WEIGHT = "tied_modules.embed.word_embeddings.weight"
OF_A_COPY = ("own", "sum", "applied", "buffered", "parted", "applied_parted", "left_parted")

COS = "model.layers.1.self_attn.rotary_emb.cos_cached"


def told(**facts: Any) -> Change:
    def change(record: dict[str, Any]) -> None:
        record.update(facts)

    change.__name__ = ",".join(f"{name}={str(value)[:40]!r}" for name, value in facts.items())
    return change


def gone(name: str) -> Change:
    def change(record: dict[str, Any]) -> None:
        del record[name]

    change.__name__ = f"{name}_gone"
    return change


def within(name: str, change_: Change) -> Change:
    """The same of a fact that has names itself, or of the first of several that have."""

    def change(record: dict[str, Any]) -> None:
        inner = record[name]
        change_(inner[0] if isinstance(inner, list) else inner)

    change.__name__ = f"{name}_{change_.__name__}"
    return change


def without(name: str, inner: str) -> Change:
    return within(name, gone(inner))


def later(change_: Change, than: int = 3) -> Change:
    """The same of the steps after one."""

    def change(record: dict[str, Any]) -> None:
        if record["step"] > than:
            change_(record)

    change.__name__ = f"later_than_{than}_{change_.__name__}"
    return change


def during(change_: Change, steps: range = range(4, 7)) -> Change:
    """The same of some steps."""

    def change(record: dict[str, Any]) -> None:
        if record["step"] in steps:
            change_(record)

    change.__name__ = f"during_{steps.start}_to_{steps.stop - 1}_{change_.__name__}"
    return change


def threefold(record: dict[str, Any]) -> None:
    """Three times each gradient, and a tolerance that would let it pass."""
    record.update(gradient=1e6 * record["gradient"], grad_norm=None)
    record["got"] = {name: [norm, 3.0, 0.0] for name, (norm, _, _) in record["got"].items()}


def often_skipped(record: dict[str, Any]) -> None:
    record["skipped"] *= 10**6


def normed(record: dict[str, Any]) -> None:
    record["grad_norm"] = record["gradient"]


def moved(record: dict[str, Any]) -> None:
    record["values"][0] += 1.0


def lone(record: dict[str, Any]) -> None:
    record["apart"][7] = 1.0


def healed(record: dict[str, Any]) -> None:
    record["apart"][260] = 0.0


def lesser(record: dict[str, Any]) -> None:
    record["apart"][257] = 0.5


Case = tuple[str, str, int | None, str, Change, str]
"""The scenario, the trial and its act, the rank (None for all), the kind of its records that are
changed, how, and what is said of it."""

MODULE = {"version": "1", "file": "/x.py"}

HOUSE: list[Case] = [
    ("bf16_clip", "fixed", 1, "upstream", told(apex="inf"), "apex is 'inf', and no state of apex"),
    ("bf16_clip", "fixed", 1, "upstream", told(apex=""), "apex is '', and no state"),
    ("bf16_clip", "fixed", 1, "upstream", told(apex="used: "), "apex is 'used: ', and no state"),
    ("bf16_clip", "fixed", 1, "upstream", told(apex="installed"), "apex is not alike on ranks 0"),
    ("sampler_shards", "buggy", 0, "start", told(python="3.11.8"), "python is not alike on ranks"),
    ("sampler_shards", "buggy", 0, "start", told(torch="2.13.1+cpu"), "torch is not alike"),
    ("sampler_shards", "buggy", 0, "start", told(threads=2), "threads is not alike on ranks 0 and"),
    ("sampler_shards", "buggy", 0, "begin", told(host="elsewhere"), "host is not alike"),
    ("streaming_map_resume", "fixed", 0, "start", told(python="inf"), "'inf', and no version"),
    ("streaming_map_resume", "fixed", 0, "start", told(python="3.9.1"), "run.json names 3.11.7"),
    ("streaming_map_resume", "fixed", 0, "start", told(torch="2.9.0"), "run.json names 2.13.0"),
    ("streaming_map_resume", "fixed", 0, "start", told(nccl="2.28.9"), "no GPU, on the cpu lane"),
    ("streaming_map_resume", "fixed", 0, "start", told(threads=2), "run.json names 1"),
    ("streaming_map_resume", "fixed", 0, "shims", told(uses={}), "are not those of run.json"),
    ("streaming_map_resume", "fixed", 0, "upstream", told(modules={"x": MODULE}), "x, which is"),
    ("streaming_map_resume", "fixed", 0, "upstream", told(files={"x": None}), "not watched"),
]

TIED: list[Case] = [
    *(
        ("tied_grad_reduce", trial, rank, "step", gone(name), f"{name} is missing")
        for trial, rank in (("control", 1), ("buggy", 0), ("reference", 0))
        for name in OF_A_COPY
    ),
    ("tied_grad_reduce", "buggy", 0, "step", told(grad_norm=None), "grad_norm is None"),
    ("tied_grad_reduce", "fixed", 1, "step", told(sum=1e3), "sum is not alike on ranks 0 and 1"),
    ("tied_grad_reduce", "reference", 0, "step", told(parted=True), "parted is True, and"),
    ("tied_grad_reduce", "control", 0, "step", told(got={}), "got has 0 names"),
    ("tied_grad_reduce", "control", 0, "step", later(normed), "norm is not told of, as it is else"),
    ("tied_grad_reduce", "control", None, "step", threefold, "where its parts on all ranks have"),
    ("tied_grad_reduce", "fixed", 1, "step", told(gradient=1e3), "where its parts on all ranks"),
    (
        "tied_grad_reduce", "control", 0, "step", without("strayed", WEIGHT),
        f"step 1: {WEIGHT} is not told of in each step",
    ),
    ("tied_resume_norm", "fixed/train", 0, "step", gone("own"), "own is missing"),
    ("tied_resume_norm", "fixed/train", 1, "step", told(own=1e3), "a gradient, own, of norm 1000"),
    ("tied_resume_norm", "fixed/train", 1, "step", told(drift={"x": 1.0}), "drift x was not"),
    (
        "tied_resume_norm", "fixed/train", None, "step", told(buffered=False),
        "buffered False, and left_parted True",
    ),
    ("tied_resume_norm", "fixed/resume", 0, "loaded", told(compared=0), "where compared is 0"),
    ("tied_resume_norm", "fixed/resume", 0, "loaded", told(trained=[]), "trained has 0 entries"),
    ("tied_resume_norm", "fixed/resume", 0, "loaded", told(trained=["x"]), "x is no parameter"),
    (
        "tied_resume_norm", "buggy/resume", 1, "loaded", within("changed", told(about="x")),
        "changed [0] about is 'x', and no change",
    ),
    (
        "tied_resume_norm", "buggy/resume", 1, "loaded", within("changed", told(greatest=1.0)),
        "is told to have changed by 1 at",
    ),
    (
        "tied_resume_norm", "buggy/resume", 1, "loaded",
        within("changed", told(name="tied_modules.x")), "tied_modules.x is no parameter of this",
    ),
    ("tied_resume_weight", "fixed/resume", 1, "step", gone("parted"), "parted is missing"),
    ("tied_resume_weight", "fixed/train", 1, "drift", told(tied={"x": 1.0}), "tied x was not"),
    (
        "tied_resume_weight", "buggy/train", None, "step", told(parted=False),
        "first stage, and no parted",
    ),
    (
        "tied_resume_weight", "buggy/train", None, "drift", told(tied={}), "and not in its step",
    ),
]  # fmt: skip

CLIP: list[Case] = [
    ("bf16_clip", "fixed", 1, "step", told(replicas=[]), "replicas has 0 entries"),
    ("bf16_clip", "fixed", 1, "step", told(replicas=["x"]), "replicas is not alike on ranks 0"),
    ("bf16_clip", "fixed", None, "step", later(told(replicas=["x"])), "is no copy in each step"),
    ("bf16_clip", "reference", 0, "step", told(replicas=["x"]), "x is no copy in each step"),
    ("bf16_clip", "fixed", 1, "step", told(differing={"x": 1.0}), "differing is not alike"),
    ("bf16_clip", "fixed", 0, "checkpoint", told(compared=0), "failed for 0 of 0 keys"),
    ("bf16_clip", "fixed", 0, "checkpoint", told(compared=1), "of 1 keys, where the model has 8"),
    ("bf16_clip", "fixed", 0, "checkpoint", told(compared=10**9), "where the model has 8"),
    ("bf16_clip", "fixed", None, "step", told(gradient=1e6), "has the norm 1e+06, where its parts"),
    ("bf16_clip", "buggy", 0, "checkpoint", told(compared=7), "failed for 8 of 7 keys"),
    (
        "bf16_clip", "buggy", 0, "checkpoint", within("failures", told(key="x")),
        "'x', and no key of a layer norm",
    ),
    (
        "bf16_clip", "buggy", 0, "checkpoint",
        within("failures", told(key="post_attention_layernorm.bias")), "not those that had drifted",
    ),
]  # fmt: skip

ROTARY: list[Case] = [
    ("rope_zero_init", "fixed", 1, "buffers", gone("saved"), "saved is missing"),
    ("rope_zero_init", "fixed", 1, "buffers", told(turned=[]), "turned was not promised"),
    ("rope_zero_init_v5", "control", 0, "buffers", gone("turned"), "turned is missing"),
    ("rope_zero_init_v5", "control", 0, "buffers", gone("turned_off"), "turned_off is missing"),
    ("rope_zero_init_v5", "control", 0, "buffers", without("turned_off", "cos"), "cos is missing"),
    ("rope_zero_init", "control", 0, "logits", told(reference="nan"), "reference is 'nan'"),
    ("rope_zero_init", "control", 0, "logits", told(reference="cuda"), "reference is 'cuda'"),
    ("rope_zero_init", "control", 0, "buffers", told(lane="gpu"), "lane is 'gpu'"),
    ("rope_zero_init", "persistent", 1, "buffers", told(saved=["x"]), "other buffers were saved"),
    ("rope_zero_init", "control", 1, "buffers", told(parted=[""]), "'', and no line of text"),
    ("rope_zero_init", "buggy", 1, "buffers", told(compared={COS: [1]}), "compared is not alike"),
    ("rope_zero_init", "buggy", 0, "buffers", without("compared", COS), "compared is not alike"),
    ("rope_zero_init", "buggy", None, "buffers", told(compared={COS: [1]}), "compared as a buffer"),
    (
        "rope_zero_init", "buggy", None, "buffers", within("compared", told(**{COS: [1]})),
        "not compared as a buffer of 524288 elements",
    ),
    ("rope_zero_init", "control", None, "buffers", told(parted=["x"]), "x is no buffer of the"),
    ("rope_zero_init", "fixed", 0, "buffers", told(reference_off={}), "was not compared with"),
    (
        "rope_zero_init", "fixed", 0, "logits", within("greatest", told(**{"300": 1.0})),
        "greatest is 1, and first is None",
    ),
    ("rope_zero_init", "fixed", 0, "logits", lone, "not from position None on are they apart"),
    ("rope_zero_init", "buggy", 0, "logits", healed, "not 63 of them are apart"),
    ("rope_zero_init", "buggy", 0, "logits", lesser, "greatest is 1.70508, and is told otherwise"),
    ("rope_zero_init", "fixed", 0, "logits", without("greatest", "257"), "greatest 257 is missing"),
    ("rope_zero_init", "fixed", 0, "logits", told(after=5), "is None, after 5 and differing 0"),
    ("rope_zero_init", "fixed", 0, "logits", told(parameters=5), "the logits has other parameters"),
    (
        "rope_zero_init_v5", "buggy", 0, "buffers", within("differing", told(place=[])),
        "at a place that it does not have",
    ),
]  # fmt: skip

OVERFLOW: list[Case] = [
    ("fp16_overflow", "control", 1, "step", told(grad_norm=None), "grad_norm is not alike on"),
    ("fp16_overflow", "buggy", 0, "step", told(grad_norm=1.5), "grad_norm is not alike on ranks"),
    ("fp16_overflow", "control", None, "step", later(told(grad_norm=None)), "is told of some"),
    ("fp16_overflow", "control", 1, "begun", told(gradient="nan"), "gradient is not alike on"),
    ("fp16_overflow", "control", None, "begun", told(gradient="nan"), "torch's gradient is nan"),
    (
        "fp16_overflow", "control", 1, "begun", told(loss=5.0, reference_loss=5.0),
        "its loss is told as 5.0 and as",
    ),
    ("fp16_overflow", "control", 1, "step", later(told(lr=0.005), 155), "next rate is 0.005, wh"),
    ("fp16_overflow", "control", 1, "begun", told(scale=1.0), "its scale is 1.0, and before it"),
    ("fp16_overflow", "fixed", 1, "begun", told(rate=0.5), "its rate is 0.5, and was to be 0.0001"),
    ("fp16_overflow", "fixed", 1, "begun", told(clipping=0.0), "clipping is 0.0, and not 1.0"),
    ("fp16_overflow", "control", 1, "step", told(headroom={}), "headroom has 0 names"),
    (
        "fp16_overflow", "control", 1, "step", without("headroom", "output logits"),
        "rank 1, step 1: other tensors were watched",
    ),
    (
        "fp16_overflow", "control", 1, "step", within("largest", told(**{"output logits": 1e4})),
        "output logits are at most 10000.0, and their headroom is told as",
    ),
    *(
        ("fp16_overflow_stage0", trial, None, "step", *wrong)
        for trial in ("fixed", "control")
        for wrong in (
            (during(told(loss=1e300)), "its loss is 1e+300, of logits of at most"),
            (during(told(loss=-1.0)), "its loss is -1.0, of logits"),
            (told(grad_norm=1e300), "its gradient norm is 1e+300, more than the precision can"),
            (told(grad_norm=1e4), "its gradient norm is 10000.0, and plain torch's 6.8949"),
        )
    ),
    (
        "fp16_overflow_stage0", "buggy", None, "step", often_skipped,
        "the count of skipped steps went from 0 to 1000000",
    ),
    (
        "fp16_overflow", "fixed", None, "step", during(told(loss="nan")),
        "its loss is nan, of logits of at most",
    ),
    ("fp16_overflow", "buggy", 1, "exception", told(type="Error"), "type is 'Error'"),
    (
        "fp16_overflow", "control", 1, "setup", within("corpus", told(sha256="0" * 64)),
        "corpus is not alike on ranks 0 and 1",
    ),
]  # fmt: skip

STEPS: list[Case] = [
    ("clip_max_for_min", "fixed", 0, "step", told(micro=[]), "micro has 0 entries, and not 1"),
    ("clip_max_for_min", "buggy", None, "step", told(applied=1e-3), "120 are wrong: 0 not"),
    ("clip_max_for_min", "fixed", None, "step", told(loss=0.0), "the loss of step 1 is 0"),
    *(
        ("clip_max_for_min", "fixed", 1, "step", change, "is not alike on ranks 0 and 1")
        for change in (
            told(loss=0.1), told(gradient=0.1), told(applied=0.1), told(ratio=1.5), told(off=0.1),
            told(micro=[1.5]), told(reference_loss=0.1),
        )
    ),
    ("clip_max_for_min", "fixed", None, "step", told(micro=[9.0]), "of each micro-batch's 9"),
    ("pipeline_gas_twice", "fixed", 1, "step", told(loss=0.1), "loss is not alike on ranks 0 and"),
    ("pipeline_gas_twice", "fixed", 1, "step", told(reference_loss=0.1), "reference_loss is not"),
    (
        "pipeline_gas_twice", "fixed", 1, "step", told(micro=[1.0, 1.0, 0.0, 2.0]),
        "of each micro-batch's 1, 1, 0, 2",
    ),
    ("trainer_gas_twice", "fixed", 0, "step", told(micro=[9.0] * 4), "micro-batch's 9, 9, 9, 9"),
    ("pipeline_gas_twice", "fixed", 0, "step", told(micro=[1.0]), "micro has 1 entries, and not 4"),
    ("pipeline_gas_twice", "control", 1, "step", told(stage=0), "stage is 0, and not 1"),
    ("trainer_gas_twice", "control", 0, "step", told(rows=[]), "rows has 0 entries"),
    ("trainer_gas_twice", "fixed", 0, "step", told(micro=[1.0]), "step 1 tells of 1 micro, 4"),
    ("trainer_gas_twice", "fixed", 0, "step", told(reference_loss=0.0), "the loss of step 1 is 0"),
    ("warmup_first_step", "buggy", 0, "rate", told(rates=[]), "rates has 0 entries, and not 1"),
    ("warmup_first_step", "buggy", 1, "rate", told(rates=[0.1, 0.1]), "rates is not alike"),
    ("warmup_first_step", "control", None, "rate", later(told(rates=[0.0] * 2)), "2 rates, 1 of"),
    ("warmup_first_step", "control", 0, "step", told(logged=[]), "logged has 0 entries"),
    ("warmup_first_step", "control", 1, "step", told(loss=0.0), "the loss of step 1 is"),
    ("warmup_first_step", "fixed", 1, "schedule", told(name="inf"), "name is 'inf'"),
]  # fmt: skip

STREAMS: list[Case] = [
    ("streaming_map_resume", "fixed", 0, "resume", told(transform="inf"), "transform is 'inf'"),
    ("streaming_map_resume", "fixed", 0, "resume", told(tables=[40]), "tables is"),
    ("sampler_shards", "fixed", 1, "epoch", told(batch=1), "batch is 1, and not 4"),
]

EMBEDDING: list[Case] = [
    ("tied_embedding_order", "fixed", 0, "cell", told(pieces=[]), "pieces has 0 entries"),
    ("tied_embedding_order", "control", 1, "rest", told(owned={}), "owned has 0 names"),
    (
        "tied_embedding_order", "fixed", 2, "rest", without("owned", "linear.0"),
        "rank 2: owned does not name linear.0",
    ),
    (
        "tied_embedding_order", "control", 1, "rest", within("owned", told(**{"linear.0": []})),
        "rank 1: owned does not name linear.0, or nobody steps it",
    ),
    ("tied_embedding_order", "fixed", 1, "rest", told(scale=1.0), "scale is 1.0, and not 2.0"),
    (
        "tied_embedding_order", "control", 1, "cell", within("pieces", told(rows=15)),
        "120 elements, 120 of them owned, where its layout has 128 and 128",
    ),
    ("tied_embedding_order", "control", 1, "layout", told(bucket=[0, 1]), "lie outside of their"),
    ("tied_embedding_training", "fixed", 1, "layout", told(owned=[0, 500]), "0 to 500 of 128"),
    ("tied_embedding_training", "fixed", 3, "step", told(missed={}), "has 0 names, and it owns a"),
    ("tied_embedding_training", "fixed", 3, "step", told(apart=1.0), "apart is not alike on ranks"),
    (
        "tied_embedding_training", "fixed", 2, "step", told(gradients_differ=1.0),
        "ranks 0 and 2 do not have gradients that are 0 apart",
    ),
    (
        "tied_embedding_training", "buggy", 1, "step", told(gradient_sum=9.0),
        "ranks 1 and 3 do not have gradients that are 0 apart",
    ),
    ("tied_embedding_training", "fixed", 0, "step", told(plain_loss=9.0), "its plain_loss is not"),
    ("tied_embedding_training", "fixed", 3, "weight", told(values=[0.1]), "of another size"),
    ("tied_embedding_training", "buggy", 1, "weight", moved, "is not that of its replicas"),
    ("tied_embedding_training", "buggy", 2, "weight", moved, "is not as far from the first stage"),
]  # fmt: skip

ALL = [*HOUSE, *TIED, *CLIP, *ROTARY, *OVERFLOW, *STEPS, *STREAMS, *EMBEDDING]


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Recording]:
    """A copy of a scenario's recorded run, to tamper with."""

    def of(scenario: str) -> Recording:
        return Recording(shutil.copytree(FOLDER / f"{scenario}_cpu", tmp_path / scenario))

    return of


def tamper(run: Recording, place: str, rank: int | None, kind: str, change: Change) -> None:
    """Change all records of a kind, of one rank or of all."""
    files = sorted((run.folder / place).glob("rank_*.jsonl"))
    for number in range(len(files)) if rank is None else [rank]:
        with run.records(place, number) as records:
            for record in [each for each in records if each["kind"] == kind]:
                change(record)


def named(case: Case) -> str:
    return "-".join(str(part) for part in (*case[:4], case[4].__name__))


@pytest.mark.parametrize("case", ALL, ids=named)
def test_ranks_whose_records_of_a_kind_say_this_are_not_believed(
    case: Case, recorded: Callable[[str], Recording]
) -> None:
    scenario, place, rank, kind, change, said = case
    run = recorded(scenario)
    tamper(run, place, rank, kind, change)
    trial = run.trial(place.partition("/")[0])
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert said in trial.reason


@pytest.mark.parametrize("trial", ["fixed", "control"])
def test_one_stages_records_are_not_those_of_the_other(
    trial: str, recorded: Callable[[str], Recording]
) -> None:
    run = recorded("tied_grad_reduce")
    with run.records(trial, 0) as first:
        theirs = [{**record, "rank": 1} for record in first[1:]]
    with run.records(trial, 1) as last:
        last[1:] = theirs
    assert run.trial(trial).outcome is Outcome.INCONCLUSIVE
    assert "the model has blocks 1, 2, 1, 2 on its stages" in run.trial(trial).reason


def test_a_gradient_norm_that_no_step_has_is_of_some_releases(
    recorded: Callable[[str], Recording],
) -> None:
    run = recorded("fp16_overflow")
    tamper(run, "control", None, "step", told(grad_norm=None))
    assert run.trial("control").outcome is Outcome.CLEAN
