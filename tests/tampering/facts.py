"""Single facts of recorded runs, changed as another machine or another upstream would change them.

tests/bugs/test_plan.py and test_shapes.py test that a plan refuses a missing fact, a wrong shape,
and an ``alike`` fact that differs between ranks.
"""

from __future__ import annotations

from typing import Any

from tests.tampering.changes import Table, cases, drop, later, times, to, within

COS = "model.layers.1.self_attn.rotary_emb.cos_cached"
ANOTHER = "post_attention_layernorm.bias"


def norm_from_step_4_on(step: dict[str, Any]) -> None:
    later(lambda step: step.update(grad_norm=step["gradient"]))(step)


MACHINE: Table = {
    "bf16_clip fixed 1 upstream": [(to(apex="installed"), "apex differs between ranks 0")],
    "sampler_shards buggy 0 start": [
        (to(python="3.11.8"), "python differs between ranks"),
        (to(torch="2.13.1+cpu"), "torch differs"),
        (to(threads=2), "threads differs between ranks 0 and"),
    ],
    "sampler_shards buggy 0 begin": [(to(host="elsewhere"), "host differs")],
    "streaming_map_resume fixed 0 start": [
        (to(python="3.9.1"), "run.json names 3.11.7"),
        (to(torch="2.9.0"), "run.json names 2.13.0"),
        (to(threads=2), "run.json names 1"),
    ],
}
"""Ranks whose environment differs from the run's."""

UPSTREAM: Table = {
    "tied_grad_reduce control 0 step": [
        (norm_from_step_4_on, "norm is missing, though other steps")
    ],
    "bf16_clip fixed * step": [],
    "bf16_clip buggy 0 checkpoint": [
        (to(compared=1), "of 1 keys (the model has 8)"),
        (within("failures", to(key=ANOTHER)), "not those that had drifted"),
    ],
    "rope_zero_init buggy 1 buffers": [(to(compared={COS: [1]}), "compared differs between")],
    "fp16_overflow fixed * setup": [(within("scaler", to(dynamic=True)), "in bf16 its")],
    "fp16_overflow buggy * setup": [
        (within("scaler", to(optimizer="FP16_UnfusedOptimizer")), "at ZeRO stage 1")
    ],
    "fp16_overflow control 1 step": [(later(to(lr=0.005), 155), "next rate is 0.005, wh")],
    "fp16_overflow control * begun": [(to(gradient="nan"), "torch's gradient is nan")],
    "fp16_overflow fixed 1 begun": [(to(rate=0.5), "its rate is 0.5, where 0.0001 was due")],
    "fp16_overflow_stage0 control * step": [
        (to(grad_norm=1e4), "its gradient norm is 10000.0, but plain torch's 6.8949")
    ],
    "fp16_overflow_stage0 buggy * step": [(times("skipped", 10**6), "went from 0 to 1000000")],
    "fp16_overflow buggy 1 records": [(drop("exception"), "is planned, but missing")],
    "clip_max_for_min buggy * step": [(to(applied=1e-3), "120 are wrong: 0 not")],
    "clip_max_for_min fixed * step": [
        (to(loss=0.0), "the loss of step 1 is 0"),
        (to(micro=[9.0]), "each micro-batch has 9"),
    ],
    "pipeline_gas_twice fixed 1 step": [
        (to(micro=[1.0, 1.0, 0.0, 2.0]), "each micro-batch has 1, 1, 0, 2")
    ],
    "trainer_gas_twice fixed 0 step": [(to(micro=[9.0] * 4), "micro-batch has 9, 9, 9, 9")],
    "warmup_first_step control * rate": [(later(to(rates=[0.0] * 2)), "of which 1 logged")],
    "warmup_first_step control 1 step": [(to(loss=0.0), "the loss of step 1 is")],
    "tied_embedding_order control 1 rest": [
        (within("owned", to(**{"linear.0": []})), "linear.0, or nobody steps it")
    ],
    "tied_embedding_order control 1 layout": [(to(bucket=[0, 1]), "lie outside of their")],
}
"""Values that contradict others: an upstream that does something else than the scenario expects."""

ALL = [*cases(MACHINE), *cases(UPSTREAM)]
