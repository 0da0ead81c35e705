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

from typing import Any

from harness.bugs import api
from scenarios.transformers import _split as split
from scenarios.transformers._sizes import SIZES

ACTIVATION = "act_fn"


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
