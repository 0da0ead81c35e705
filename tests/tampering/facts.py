"""Changes of single facts in the records of recorded runs: removed, empty, or wrong."""

from __future__ import annotations

from typing import Any

from tests.tampering.changes import (
    Table,
    at,
    cases,
    during,
    gone,
    later,
    less,
    recorded_trial,
    times,
    to,
    within,
    without,
)

WEIGHT = "tied_modules.embed.word_embeddings.weight"
OF_A_COPY = ("own", "sum", "applied", "buffered", "parted", "applied_parted", "left_parted")
PARTIAL = ("gradient", "applied", "ratio", "off", "reference_loss")
FEW = range(4, 7)
UNFUSED = {"optimizer": "FP16_UnfusedOptimizer"}
MODULE = {"version": "1", "file": "/x.py"}
CASTS = {"arange": "float32", "ones": "bfloat16"}
COS = "model.layers.1.self_attn.rotary_emb.cos_cached"
ANOTHER = "post_attention_layernorm.bias"
LOGITS = {"output logits": 1e4}


def norm_from_step_4_on(step: dict[str, Any]) -> None:
    later(lambda step: step.update(grad_norm=step["gradient"]))(step)


def threefold(record: dict[str, Any]) -> None:
    """Three times each gradient, with a tolerance that would accept it."""
    record.update(gradient=1e6 * record["gradient"], grad_norm=None)
    record["got"] = {name: [norm, 3.0, 0.0] for name, (norm, _, _) in record["got"].items()}


def of_the_first_stage(records: list[dict[str, Any]]) -> None:
    """After its identity, a rank has the records of the first stage."""
    _, *theirs = recorded_trial("tied_grad_reduce", "fixed").by_rank[0]
    records[1:] = [{k: v for k, v in r.items() if k != "launch"} | {"rank": 1} for r in theirs]


TABLE: Table = {
    "bf16_clip fixed 1 upstream": [
        (to(apex="inf"), "apex is 'inf', expected state of apex"),
        (to(apex="installed"), "apex differs between ranks 0"),
    ],
    "sampler_shards buggy 0 start": [
        (to(python="3.11.8"), "python differs between ranks"),
        (to(torch="2.13.1+cpu"), "torch differs"),
        (to(threads=2), "threads differs between ranks 0 and"),
    ],
    "sampler_shards buggy 0 begin": [(to(host="elsewhere"), "host differs")],
    "streaming_map_resume fixed 0 start": [
        (to(python="inf"), "'inf', expected version"),
        (to(python="3.9.1"), "run.json names 3.11.7"),
        (to(torch="2.9.0"), "run.json names 2.13.0"),
        (to(nccl="2.28.9"), "no GPU, on the cpu lane"),
        (to(threads=2), "run.json names 1"),
    ],
    "streaming_map_resume fixed 0 shims": [(to(uses={}), "are not those of run.json")],
    "streaming_map_resume fixed 0 upstream": [
        (to(modules={"x": MODULE}), "x, which is"),
        (to(files={"x": None}), "not watched"),
    ],
    "tied_grad_reduce fixed 1 records": [(of_the_first_stage, "has blocks 1, 2, 1, 2 on")],
    "tied_grad_reduce buggy 0 step": [
        *((gone(name), f"{name} is missing") for name in OF_A_COPY),
        (to(grad_norm=None), "grad_norm is None"),
    ],
    "tied_grad_reduce fixed 1 step": [
        (to(sum=1e3), "sum differs between ranks 0 and 1"),
        (to(gradient=1e3), "but its parts on all ranks"),
    ],
    "tied_grad_reduce reference 0 step": [(to(parted=True), "parted is True, expected")],
    "tied_grad_reduce control 0 step": [
        (to(got={}), "got has 0 names"),
        (norm_from_step_4_on, "norm is missing, though other steps"),
        (without("strayed", WEIGHT), f"step 1: {WEIGHT} is not reported in every step"),
    ],
    "tied_grad_reduce control * step": [(threefold, "but its parts on all ranks have")],
    "tied_resume_norm fixed/train 0 step": [(gone("own"), "own is missing")],
    "tied_resume_norm fixed/train 1 step": [
        (to(own=1e3), "a gradient, own, of norm 1000"),
        (to(drift={"x": 1.0}), "drift x is not expected"),
    ],
    "tied_resume_norm fixed/train * step": [
        (to(buffered=False), "buffered False, and left_parted")
    ],
    "tied_resume_norm fixed/resume 0 loaded": [
        (to(compared=0), "but compared is 0"),
        (to(trained=[]), "trained has 0 entries"),
        (to(trained=["x"]), "x is not a parameter"),
    ],
    "tied_resume_norm buggy/resume 1 loaded": [
        (within("changed", to(about="x")), "changed [0] about is 'x', expected change"),
        (within("changed", to(greatest=1.0)), "has a change of 1 at"),
        (within("changed", to(name="tied_modules.x")), "tied_modules.x is not a parameter"),
    ],
    "tied_resume_weight fixed/resume 1 step": [(gone("parted"), "parted is missing")],
    "tied_resume_weight fixed/train 1 drift": [(to(tied={"x": 1.0}), "tied x is not expected")],
    "tied_resume_weight buggy/train * step": [(to(parted=False), "first stage, and no parted")],
    "tied_resume_weight buggy/train * drift": [(to(tied={}), "but not in its step")],
    "bf16_clip fixed 1 step": [
        (to(replicas=[]), "replicas has 0 entries"),
        (to(replicas=["x"]), "replicas differs between ranks 0"),
        (to(differing={"x": 1.0}), "differing differs"),
    ],
    "bf16_clip fixed * step": [
        (later(to(replicas=["x"])), "is no copy in each step"),
        (to(gradient=1e6), "has the norm 1e+06, but its parts"),
    ],
    "bf16_clip reference 0 step": [(to(replicas=["x"]), "x is no copy in each step")],
    "bf16_clip fixed 0 checkpoint": [
        (to(compared=0), "failed for 0 of 0 keys"),
        (to(compared=1), "of 1 keys (the model has 8)"),
    ],
    "bf16_clip buggy 0 checkpoint": [
        (to(compared=7), "failed for 8 of 7 keys"),
        (within("failures", to(key="x")), "'x', expected key of a layer norm"),
        (within("failures", to(key=ANOTHER)), "not those that had drifted"),
    ],
    "rope_zero_init fixed 1 buffers": [
        (gone("saved"), "saved is missing"),
        (to(turned=[]), "turned is not expected"),
        (to(sharded=20), "sharded differs between ranks"),
        (to(casts=CASTS), "casts differs between ranks"),
    ],
    "rope_zero_init_v5 control 0 buffers": [
        (gone("turned"), "turned is missing"),
        (gone("turned_off"), "turned_off is missing"),
        (without("turned_off", "cos"), "cos is missing"),
    ],
    "rope_zero_init control 0 logits": [
        (to(reference="nan"), "reference is 'nan'"),
        (to(reference="cuda"), "reference is 'cuda'"),
    ],
    "rope_zero_init control 0 buffers": [(to(lane="gpu"), "lane is 'gpu'")],
    "rope_zero_init persistent 1 buffers": [(to(saved=["x"]), "other buffers were saved")],
    "rope_zero_init control 1 buffers": [(to(parted=[""]), "'', expected one line of text")],
    "rope_zero_init buggy 1 buffers": [(to(compared={COS: [1]}), "compared differs between")],
    "rope_zero_init buggy 0 buffers": [(without("compared", COS), "compared differs between")],
    "rope_zero_init buggy * buffers": [
        (to(compared={COS: [1]}), "compared as a buffer"),
        (within("compared", to(**{COS: [1]})), "as a buffer of 524288 elements"),
    ],
    "rope_zero_init control * buffers": [(to(parted=["x"]), "x is not a buffer of the")],
    "rope_zero_init fixed 0 buffers": [(to(reference_off={}), "was not compared with")],
    "rope_zero_init fixed 0 logits": [
        (within("greatest", to(**{"300": 1.0})), "greatest is 1, and first is None"),
        (at("apart", 7, 1.0), "apart does not start at position None"),
        (without("greatest", "257"), "greatest 257 is missing"),
        (to(after=5), "is None, after 5 and differing 0"),
        (to(parameters=5), "logits has another number of"),
    ],
    "rope_zero_init buggy 0 logits": [
        (at("apart", 260, 0.0), "apart does not have 63 positions"),
        (at("apart", 257, 0.5), "greatest is 1.70508, unlike in apart"),
    ],
    "rope_zero_init_v5 buggy 0 buffers": [
        (within("differing", to(place=[])), "at a place that it")
    ],
    "fp16_overflow fixed * setup": [(within("scaler", to(dynamic=True)), "in bf16 its")],
    "fp16_overflow buggy * setup": [(within("scaler", to(**UNFUSED)), "at ZeRO stage 1")],
    "fp16_overflow control 1 step": [
        (to(grad_norm=None), "grad_norm differs between"),
        (later(to(lr=0.005), 155), "next rate is 0.005, wh"),
        (to(headroom={}), "headroom has 0 names"),
        (without("headroom", "output logits"), "step 1: other tensors were watched"),
        (within("largest", to(**LOGITS)), "logits are at most 10000.0, but their headroom"),
    ],
    "fp16_overflow buggy 0 step": [(to(grad_norm=1.5), "grad_norm differs between ranks")],
    "fp16_overflow control * step": [(later(to(grad_norm=None)), "only some steps")],
    "fp16_overflow control 1 begun": [
        (to(gradient="nan"), "gradient differs between"),
        (to(loss=5.0, reference_loss=5.0), "its loss is 5.0 and"),
        (to(scale=1.0), "its scale is 1.0, and before it"),
    ],
    "fp16_overflow control * begun": [(to(gradient="nan"), "torch's gradient is nan")],
    "fp16_overflow fixed 1 begun": [(to(rate=0.5), "its rate is 0.5, where 0.0001 was due")],
    "fp16_overflow_stage0 control * step": [
        (during(to(loss=1e300), FEW), "its loss is 1e+300, but its logits"),
        (during(to(loss=-1.0), FEW), "its loss is -1.0, but its logits"),
        (to(grad_norm=1e300), "its gradient norm is 1e+300, more than the precision can"),
        (to(grad_norm=1e4), "its gradient norm is 10000.0, but plain torch's 6.8949"),
    ],
    "fp16_overflow_stage0 buggy * step": [(times("skipped", 10**6), "went from 0 to 1000000")],
    "fp16_overflow fixed * step": [(during(to(loss="nan"), FEW), "its loss is nan, but")],
    "fp16_overflow buggy 1 exception": [
        (to(type="Error"), "type is 'Error'"),
        (to(text="At minimum"), "text is 'At minimum'"),
    ],
    "fp16_overflow buggy 1 records": [(less("exception"), "is planned, but missing")],
    "fp16_overflow buggy 1 setup": [(within("scaler", to(minimum=2.0)), "scaler differs between")],
    "fp16_overflow control 1 setup": [
        (within("corpus", to(sha256="0" * 64)), "corpus differs between")
    ],
    "clip_max_for_min fixed 0 step": [(to(micro=[]), "micro has 0 entries, expected 1")],
    "clip_max_for_min fixed 1 step": [
        *((to(**{name: 0.1}), "differs between ranks 0 and 1") for name in PARTIAL),
        (to(micro=[1.5]), "differs between ranks 0 and 1"),
    ],
    "clip_max_for_min buggy * step": [(to(applied=1e-3), "120 are wrong: 0 not")],
    "clip_max_for_min fixed * step": [
        (to(loss=0.0), "the loss of step 1 is 0"),
        (to(micro=[9.0]), "each micro-batch has 9"),
    ],
    "pipeline_gas_twice fixed 1 step": [
        (to(loss=0.1), "loss differs between ranks 0 and"),
        (to(reference_loss=0.1), "reference_loss differs"),
        (to(micro=[1.0, 1.0, 0.0, 2.0]), "each micro-batch has 1, 1, 0, 2"),
    ],
    "trainer_gas_twice fixed 0 step": [
        (to(micro=[9.0] * 4), "micro-batch has 9, 9, 9, 9"),
        (to(micro=[1.0]), "step 1 has 1 micro, 4"),
        (to(reference_loss=0.0), "the loss of step 1 is 0"),
    ],
    "pipeline_gas_twice fixed 0 step": [(to(micro=[1.0]), "micro has 1 entry, expected 4")],
    "pipeline_gas_twice control 1 step": [(to(stage=0), "stage is 0, expected 1")],
    "trainer_gas_twice control 0 step": [(to(rows=[]), "rows has 0 entries")],
    "warmup_first_step buggy 0 rate": [(to(rates=[]), "rates has 0 entries, expected")],
    "warmup_first_step buggy 1 rate": [(to(rates=[0.1, 0.1]), "rates differs")],
    "warmup_first_step control * rate": [(later(to(rates=[0.0] * 2)), "of which 1 logged")],
    "warmup_first_step control 0 step": [(to(logged=[]), "logged has 0 entries")],
    "warmup_first_step control 1 step": [(to(loss=0.0), "the loss of step 1 is")],
    "warmup_first_step fixed 1 schedule": [(to(name="inf"), "name is 'inf'")],
    "tied_embedding_order fixed 0 cell": [(to(pieces=[]), "pieces has 0 entries")],
    "tied_embedding_order control 1 rest": [
        (to(owned={}), "owned has 0 names"),
        (within("owned", to(**{"linear.0": []})), "linear.0, or nobody steps it"),
    ],
    "tied_embedding_order fixed 2 rest": [
        (without("owned", "linear.0"), "owned does not name linear.0")
    ],
    "tied_embedding_order control 1 cell": [(within("pieces", to(rows=15)), "has 128 and 128")],
    "tied_embedding_order control 1 layout": [(to(bucket=[0, 1]), "lie outside of their")],
    "tied_embedding_training fixed 1 layout": [(to(owned=[0, 500]), "0 to 500 of 128")],
    "tied_embedding_training fixed 3 step": [
        (to(missed={}), "has 0 names, but it owns a"),
        (to(apart=1.0), "apart differs between ranks"),
    ],
    "tied_embedding_training fixed 2 step": [(to(gradients_differ=1.0), "ranks 0 and 2 do not")],
    "tied_embedding_training buggy 1 step": [(to(gradient_sum=9.0), "ranks 1 and 3 do not have")],
    "tied_embedding_training fixed 0 step": [(to(plain_loss=9.0), "its plain_loss is not")],
    "tied_embedding_training fixed 3 weight": [(to(values=[0.1]), "has another size")],
    "tied_embedding_training buggy 1 weight": [
        (at("values", 0, 9.0), "is not that of its replicas")
    ],
    "tied_embedding_training buggy 2 weight": [(at("values", 0, 9.0), "is not as far from the")],
}

ALL = cases(TABLE)
