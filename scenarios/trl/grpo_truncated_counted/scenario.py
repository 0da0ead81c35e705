"""GRPO counts the tokens of truncated completions in its loss, although it masks them.

This affected users of trl who train with ``mask_truncated_completions=True``, as the paper of DAPO
advises and as trl's documentation repeats. The loss is the sum over the tokens of the completions
that end, divided by the tokens of all. So the update shrinks by the share of truncated tokens, and
as truncated completions are the longest, this share is large: if half of the completions are
truncated, often two thirds of the update are missing. It changes from step to step.

Root cause: the number of tokens was counted when the completions were generated, before those that
are truncated were masked. Since 1.9.0 the mask of the loss is counted.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import features

PROMPT, LONGEST = 2, 24
"""Tokens of a prompt, and at most of a completion: about half of them do not end within these."""

oracle = features.Feature(
    "exactly that follows if the loss is divided by the tokens of all completions", checks=()
)


def run(ctx: api.Context) -> None:
    """Train on completions that upstream generates; plain torch has the loss of the same ones."""
    import torch
    from datasets import Dataset
    from torch.nn.functional import log_softmax
    from trl import GRPOConfig, GRPOTrainer

    from scenarios.common import texts
    from scenarios.common.hf_trainer import QUIET, VOCABULARY, constant, llama

    torch.manual_seed(ctx.seed)
    model = llama().to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches, steps = list[Any](), iter(api.each(ctx.params.steps))

    class Noting(GRPOTrainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **settings: Any) -> Any:
            batches.append(inputs)
            return super().compute_loss(model, inputs, *rest, **settings)

    def compared(*_: Any) -> None:
        """Record the gradient of a step, before it is applied."""
        actual, batch = features.gradients(model), batches.pop()
        answers, mask = batch["completion_ids"], batch["completion_mask"]
        tokens = torch.cat([batch["prompt_ids"], answers], 1)
        logits = model(tokens).logits[:, PROMPT - 1 : -1]
        chosen = log_softmax(logits, -1).gather(-1, answers[..., None])[..., 0]
        total = -(batch["advantages"].view(-1, 1) * chosen * mask).sum()
        counted = int(mask.sum())
        truncated = LONGEST * int((mask.sum(1) == 0).sum())
        expected = features.of_losses(model, [total / counted])
        factor = counted / (counted + truncated)
        documented = {name: gradient * factor for name, gradient in expected.items()}
        features.record(ctx, next(steps), total / counted, actual, expected, documented)

    optimizer.register_step_pre_hook(compared)
    Noting(
        model=model,
        reward_funcs=lambda completion_ids, **_: [float(ids[0]) for ids in completion_ids],
        args=GRPOConfig(
            output_dir=str(ctx.folder / "out"),
            use_cpu=ctx.lane is api.Lane.CPU,
            seed=ctx.seed,
            max_steps=ctx.params.steps,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=LONGEST,
            mask_truncated_completions=ctx.params.masked,
            loss_type="dapo",
            beta=0.0,
            bf16=False,
            gradient_checkpointing=False,
            **QUIET,
        ),
        train_dataset=Dataset.from_list([{"prompt": f"w{n} w{n + 1}"} for n in range(8)]),
        processing_class=texts.tokenizer(VOCABULARY),
        optimizers=(optimizer, constant(optimizer)),
    ).train()
