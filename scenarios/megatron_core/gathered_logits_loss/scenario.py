"""GPTModel with gathered logits reports a loss that is too high by log(tensor-parallel size).

This affects users who call megatron-core's GPTModel with labels and gather its logits, by
``parallel_output=False`` or ``runtime_gather_output=True``. On 2 ranks each loss is too high by
0.693, on 4 by 1.386. That looks like a worse model. The gradient is wrong as well, and not by a
common factor: only the tokens of the first rank's part of the vocabulary are learned as labels, all
others are only made less likely. Training goes on, and the loss falls.

Root cause: ``compute_language_model_loss`` always gives its logits to
``vocab_parallel_cross_entropy``, which takes them for this rank's part of the vocabulary. Each rank
has all logits, so each class is counted once for each rank. The second rank looks for its labels
behind the end of the vocabulary, and finds none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common import features
from scenarios.common.gradient import TOLERANCE


def part_again(function: Any) -> api.Edits:
    """Logits of the whole vocabulary are cut into the ranks' parts before the loss."""
    import libcst as cst

    cut = cst.parse_statement(
        "if self.config.tensor_model_parallel_size > 1 and logits.size(-1) == self.vocab_size:\n"
        "    logits = tensor_parallel.scatter_to_tensor_model_parallel_region(logits)\n"
    )
    lines = list(function.body.body)
    docstring, *others = lines
    yield function.body, function.body.with_changes(body=[docstring, cut, *others])


@dataclass(frozen=True)
class Step(features.Step):
    right_loss: api.Number
    """torch's cross-entropy of all logits."""

    @property
    def excess(self) -> float:
        """By how much the loss is too high (nats)."""
        return self.loss - self.right_loss


class Gathered(features.Feature):
    """The losses are judged, too."""

    step: Any = Step

    def plan(self, at: api.Position) -> api.Plan:
        facts = Step.shapes(
            loss=api.alike(api.NUMBER),
            right_loss=api.alike(api.NUMBER),
            gradients=api.by_name(api.many(api.SIZE, 3), least=1),
        )
        return {"step": api.Kind(facts, api.each(at.params.steps))}

    def is_right(self, step: Any, records: api.Records) -> bool:
        return super().is_right(step, records) and abs(step.excess) <= TOLERANCE

    def documented(self, step: Any, records: api.Records) -> bool:
        """Each loss is too high by the logarithm of the number of ranks, and each gradient is that
        of a loss that counts the vocabulary once for each rank, and the labels of the first rank
        only."""
        excess = math.log(len(records.ranks))
        near = api.near(step.excess, excess, within=TOLERANCE)
        return near and super().documented(step, records)

    def describe(self, wrong_steps: Sequence[Any], records: api.Records) -> Iterator[str]:
        step = wrong_steps[0]
        yield (
            f"step {step.step}: the loss is {step.loss:.4f}, torch's of the same logits is "
            f"{step.right_loss:.4f}"
        )
        if step.off:
            yield from super().describe(wrong_steps, records)


oracle = Gathered(
    reason="the excess is the logarithm of {ranks}, the number of ranks",
    picture=api.lines(
        "The loss, less the right loss",
        "with the bug the loss is too high by log(2) on 2 ranks; without it, it is torch's",
        lambda step: float(step["loss"] - step["right_loss"]),
        y="nats",
    ),
)


def run(ctx: api.Context) -> None:
    """Train a GPT on tensor-parallel ranks; compare with torch's loss of all its logits."""
    from scenarios.megatron_core.gathered_logits_loss import training

    with ctx.phase("steps"):
        training.train(ctx)
