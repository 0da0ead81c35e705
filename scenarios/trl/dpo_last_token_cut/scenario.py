"""DPOTrainer cuts the last token off the longest rows: they do not learn to end.

This affected DPO with micro-batches of several preferences whose prompts have different lengths.
Prompts are padded on the left, completions on the right. The trainer moves each row to the left and
removes the columns that are empty then. It removed one column too many. So the longest rows of a
micro-batch lose their last token, which is the token for the end. Its log-probability is missing in
the loss, in the gradient, and in the metrics. The loss falls, and which rows are concerned depends
on the batch.

Root cause: the columns before the first empty one were taken as ``[: first_empty_col - 1]``. A
batch without an empty column was whole, because the number was one too large there.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied

LENGTHS = {"unequal": ((4, 3, 2), (2, 5, 5)), "equal": ((4, 5, 5),)}
"""The words of a prompt, of its chosen and of its rejected completion; preferences take turns."""


@dataclass(frozen=True)
class Step(applied.Step):
    cut: applied.Single
    """Beside DPO on the rows without the last column."""


def shortened(step: Step, _: api.Records) -> bool:
    """Each update is that of rows of which the longest lack the last token."""
    return step.cut.times(1)


oracle = applied.Applied(
    Step,
    shortened,
    parts=lambda at: 1,
    reason="exactly that follows if the longest rows lack their last token",
)


def run(ctx: api.Context) -> None:
    """Train a tiny model on preferences; compare each step with plain torch on the whole rows."""
    import torch

    from scenarios.common import texts
    from scenarios.common.hf_trainer import VOCABULARY
    from scenarios.trl import _preferences as preferences

    p = ctx.params
    tokenizer = texts.tokenizer(VOCABULARY)
    rows = preferences.dataset(tokenizer, preferences.ROWS, ctx.seed, LENGTHS[p.prompts])
    whole = preferences.tokens(tokenizer, rows).to(ctx.device)

    class Watch(preferences.Watch):
        def facts(self) -> dict[str, object]:
            parts = (self.differentiated(self.start, [each]) for each in (whole, whole[:, :-1]))
            plain, cut = map(self._applied, parts)
            return {**plain, "cut": cut}

    with ctx.phase("init"):
        policy = preferences.model(ctx)
        optimizer = torch.optim.SGD(policy.parameters(), lr=p.lr)
        Watch(ctx, policy, optimizer)
        trainer = preferences.trainer(
            ctx, policy, optimizer, preferences.model(ctx), 1, p.steps, rows
        )
    with ctx.phase("steps"):
        trainer.train()
