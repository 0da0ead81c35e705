"""With tensor parallelism, label smoothing is computed over each rank's part of the vocabulary.

Each rank then has a different loss, and the gradient of the logits is wrong on all ranks. Here,
with 2 ranks, 16 tokens and a smoothing of 0.1, the losses of the first step are 4.714 and 4.638;
the right one is 4.674. Training goes on, and the loss falls. megatron-core's own GPT smooths no
labels: the bug affects users who call its cross-entropy in their own loss. It was reported in March
2024, and the newest release still has it.

Root cause: ``vocab_parallel_cross_entropy`` gets a part of the logits. It takes the mean of the
log-probabilities over this part, without the all-reduce that is needed. It also takes the size of
this part for the number of classes, which decides how much is smoothed. So each token gets about as
many times its share of the smoothing as there are ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common import applied, usual_checks
from scenarios.common.gradient import TOLERANCE
from scenarios.common.line_edits import followed, setting


def over_all_ranks(tree: Any) -> api.Edits:
    """``forward`` counts the classes of all ranks, and averages the logarithms over all ranks."""
    body: Any = tree.body
    for name, lines in (
        ("vocab_size", ("vocab_size = vocab_size * world_size",)),
        (
            "mean_log_probs",
            (
                "torch.distributed.all_reduce("
                "mean_log_probs, group=get_tensor_model_parallel_group())",
                "mean_log_probs = mean_log_probs / world_size",
            ),
        ),
    ):
        ((line, replacement),) = followed(setting(body, name), *lines)
        body = body.deep_replace(line, replacement)
    yield tree.body, body


@dataclass(frozen=True)
class Step(applied.Step):
    local_loss: api.Number
    """The loss that smooths over this rank's part of the vocabulary."""
    unexplained: applied.Single
    """Beside the gradients of the ranks' losses, each on its rank's logits."""
    loss: api.Number

    @property
    def has_loss(self) -> bool:
        """Whether the loss is plain torch's."""
        return api.near(self.loss, self.reference_loss, share=TOLERANCE)


def over_own_part(step: Step, _: api.Records) -> bool:
    """Each rank's loss smooths over its part of the vocabulary, and each step applied the gradients
    of these losses, each on its rank's logits."""
    local = api.near(step.loss, step.local_loss, share=TOLERANCE)
    return local and step.unexplained.times(1)


@dataclass(frozen=True)
class Smoothed(applied.Applied[Step]):
    """A rank's loss is judged, too."""

    def shapes(self, at: api.Position) -> api.Facts:
        losses = {"loss": api.NUMBER, "local_loss": api.NUMBER}  # each rank has its own
        return {**super().shapes(at), **losses}

    def is_right(self, step: Step, records: api.Records) -> bool:
        return step.has_loss and super().is_right(step, records)

    def is_documented(self, step: Step, records: api.Records) -> bool:
        return not self.is_right(step, records) and super().is_documented(step, records)

    def describe(self, wrong_steps: Sequence[Step], records: api.Records) -> Iterator[str]:
        for step in (one for one in wrong_steps if one.step == wrong_steps[0].step):
            if not step.has_loss:
                yield (
                    f"rank {step.rank}, step {step.step}: the loss is {step.loss:.4f}, plain "
                    f"torch's is {step.reference_loss:.4f}"
                )
            yield str(step)


oracle = Smoothed(
    Step,
    over_own_part,
    parts=lambda at: 1,
    replicas=True,
    checks=[usual_checks.loss_ends_higher],
    picture=api.lines(
        "The loss of the first rank, less the right loss",
        "with the bug the first rank's loss is not that of plain torch; without it, it is",
        lambda step: float(step["loss"] - step["reference_loss"]),
        y="nats",
    ),
)


def run(ctx: api.Context) -> None:
    """Train a bigram model of upstream's tensor-parallel layers with its smoothed loss."""
    from scenarios.megatron_core.tp_label_smoothing import bigram

    p = ctx.params
    with ctx.phase("steps"):
        bigram.train(ctx, p.smoothing, p.steps, p.lr, gathered=p.gathered)
