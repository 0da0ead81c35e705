"""With context parallelism, a masked loss is the mean of the ranks' means: tokens weigh unequally.

This affects users who share sequences among ranks, and count only some of the tokens: answers of a
chat, or all but padding. Each rank divides by the number of its own tokens that count. So a token
weighs more if it lies in a part of the sequence in which few others count. With 3 counted tokens on
the first rank and 1 on the second, that one weighs as much as the other three together. The loss
that is printed is right.

Root cause: ``forward_step_calc_loss`` divides the loss of each rank by the number of tokens that
its loss function returns. The loss function of upstream's training scripts returns those of its own
part since 0.13; before, it summed over the ranks.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import applied
from scenarios.common.gradient import TOLERANCE
from scenarios.megatron_core import _context as context


def over_sequence(function: Any) -> api.Edits:
    """The loss is divided by the number of tokens of the whole sequence."""
    import libcst as cst
    import libcst.matchers as m

    lines = (
        "num_tokens = num_tokens.clone()",
        "group = parallel_state.get_context_parallel_group()",
        "torch.distributed.all_reduce(num_tokens, group=group)",
        "output_tensor *= cp_group_size",
    )
    by_tokens = m.AugAssign(
        m.Name("output_tensor"), m.DivideAssign(), m.Call(m.Attribute(attr=m.Name("clamp")))
    )
    for line in m.findall(function, m.SimpleStatementLine([by_tokens])):
        yield line, cst.FlattenSentinel([*map(cst.parse_statement, lines), line])


def by_part(step: applied.Step, records: api.Records) -> bool:
    """Each rank's part has the same weight, whatever number of its tokens counts."""
    p, ranks = records.params, len(records.ranks)
    tokens = [p.first, *[p.others] * (ranks - 1)]
    return step.has([sum(tokens) / ranks / count for count in tokens], within=TOLERANCE)


oracle = applied.Applied(
    applied.Step,
    by_part,
    parts=lambda at: at.world_size,
    replicas=True,
    words=applied.of_first,
    reason="each rank's loss is a mean over its own tokens",
    picture=api.bars(
        "The weight of each rank's part",
        "with the bug a token of the part with fewer tokens weighs more; without it, all weigh 1",
        lambda records: (
            (f"part {part}", share)
            for step in records.typed(applied.Step, rank=0)[:1]
            for part, share in enumerate(step.micro)
        ),
        "times the right weight of a token",
        {"right": 1.0},
    ),
)


def run(ctx: api.Context) -> None:
    """Train on sequences that the ranks share."""
    from scenarios.megatron_core import _context_training as training

    with ctx.phase("steps"):
        training.train(ctx)


def exercised(records: api.Records) -> api.Exercise:
    """Ranks shared each sequence, and their loss functions returned different numbers of tokens."""
    p = records.params
    return (
        context.shared(records)
        & api.Exercise.of(
            p.first != p.others,
            f"{p.first} tokens of the first part count, {p.others} of the others",
            "as many tokens count in each part",
        )
        & api.Exercise.needs(not p.per_token, "the loss was one per token")
        & api.Exercise.needs(
            p.loss in (context.SCRIPT, context.PART_ALONE),
            "the loss function summed over the ranks",
        )
    )
