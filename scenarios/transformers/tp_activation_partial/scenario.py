"""Under tensor parallelism, each rank trains Apertus' activation with a part of its gradient.

Apertus' activation, xIELU, has two learned numbers in each layer, ``alpha_p`` and ``alpha_n``. Its
inputs are split over the ranks, and each rank has a copy of the two numbers. So each rank gets the
gradient of its own inputs alone; nobody adds the parts up. The logits of the first step are right,
and so is the norm of every other gradient, but the copies part with each step, and from then on
the ranks compute with different models. A saved checkpoint has the numbers of one rank.

Root cause: ``base_model_tp_plan`` of ``ApertusConfig`` marks ``q_norm`` and ``k_norm``, which have
the same property, with ``replicated_with_grad_allreduce``. It leaves out ``mlp.act_fn``. We know of
no report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.transformers import _split as split
from scenarios.transformers._sizes import SIZES

ACTIVATION = "act_fn"


@dataclass
class Params(split.Params):
    activation: str = api.knob("xielu", choices=("xielu", "silu"), about="of the layers")


def with_activation(config: Any) -> api.Edits:
    """The plan adds up the ranks' gradients of the activation, as it does for norms."""
    import libcst as cst
    import libcst.matchers as m

    plan = m.AnnAssign(target=m.Name("base_model_tp_plan")) | m.Assign(
        [m.AssignTarget(m.Name("base_model_tp_plan"))]
    )
    entry = cst.DictElement(
        cst.SimpleString('"layers.*.mlp.act_fn"'),
        cst.SimpleString('"replicated_with_grad_allreduce"'),
    )
    for node in m.findall(config, plan):
        assigned: Any = node
        entries = assigned.value.with_changes(elements=[*assigned.value.elements, entry])
        yield assigned, assigned.with_changes(value=entries)


REMEDY = api.Defect(
    upstream="transformers",
    file="transformers/models/apertus/configuration_apertus.py",
    scope="ApertusConfig",
    edit=with_activation,
    about="our remedy: the plan marks mlp.act_fn as it marks q_norm",
)

SCENARIO = api.Scenario(
    report=(
        "no report; transformers' documentation of plans for tensor parallelism",
        "https://huggingface.co/docs/transformers/main/en/perf_infer_gpu_multi",
    ),
    fix="none as of transformers 5.24.0",
    symptom="each rank has its own part of the gradient of act_fn.alpha_p and alpha_n",
    trigger="Apertus with tensor parallelism on several ranks",
    remedy="add layers.*.mlp.act_fn: replicated_with_grad_allreduce to config.base_model_tp_plan",
    pins={"transformers": "5.23.0", "accelerate": "1.13.0"},
    vehicles=("accelerate",),
    absent=(
        api.Absent(
            "transformers<5.1",
            "Apertus came with 4.56.0, and cannot be loaded with a plan before 5.1",
            "https://github.com/huggingface/transformers/releases/tag/v4.56.0",
        ),
    ),
    releases="transformers>=5.1",  # older ones cannot load the two numbers with a plan
    harm="ruins training",
    visibility="silent",
    settings={"ranks": api.above(1), "code": api.by_code("Apertus is split with a tp_plan")},
    seen={
        "transformers.models.apertus.modeling_apertus.ApertusPreTrainedModel": {
            "_tp_size": api.above(1),
            "config.hidden_act": "xielu",
        },
        "transformers.models.apertus.modeling_apertus.ApertusMLP": {
            f"{ACTIVATION}.alpha_p.requires_grad": True  # and not frozen beside adapters
        },
    },
    known_upstream=False,
    files=("transformers/models/apertus/configuration_apertus.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean(about="5.23.0 with our remedy", defects=(REMEDY,)),
        "control": api.control("5.23.0 on one rank", ranks=1),
        "silu": api.control(
            "5.23.0 with an activation without weights", params={"activation": "silu"}
        ),
    },
)

oracle = split.SplitModel(modules=(ACTIVATION,))


def run(ctx: api.Context) -> None:
    """Differentiate a small Apertus, split over the ranks by its own plan."""

    def make() -> Any:
        from transformers import ApertusConfig, ApertusForCausalLM

        activation = {"hidden_act": ctx.params.activation}
        return ApertusForCausalLM(ApertusConfig(**SIZES, **activation))

    split.differentiate(ctx, make)


def exercised(records: api.Records) -> api.Exercise:
    """An activation with weights was split over several ranks."""
    names = [name for step in records.of("step", 0) for name in step["gradients"]]
    return split.several(records) & api.Exercise.of(
        any(ACTIVATION in name for name in names),
        "the activation has weights",
        "the activation has no weights",
    )
