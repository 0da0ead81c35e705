"""GRPO's loss type luspo trains on padding, and weighs a completion by the square of its length.

This affected users of trl who train with ``loss_type="luspo"``, which is there to remove GRPO's
bias by the length of a completion. With ``importance_sampling_level="token"``, the default of the
configuration, it had another one: a completion weighs by the square of its length, so long ones
weigh far more than short ones. And the model learns to put padding behind an answer with a high
reward, and not to do so behind a low one. trl warns that the level should be "sequence", as in the
paper, and not that the loss is wrong otherwise.

Root cause: the loss of a completion is multiplied by its number of tokens, and then the mean of all
places is taken, with padding. That is right if there is one number for each completion. With a loss
for each token, which a KL term or an entropy mask make as well, it needs the mask. Since 1.10.0 the
tokens' losses are multiplied by the mask and added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features

if TYPE_CHECKING:
    from torch import Tensor

PROMPT, LENGTHS = 3, (8, 2, 5, 3)
"""Tokens of each prompt, and of each completion."""

oracle = features.Feature(
    "exactly that follows if padding counts, and the length counts twice",
    checks=(),  # the rewards of each step are new, and so its loss says nothing
)


def run(ctx: api.Context) -> None:
    """Train on completions of unequal lengths with upstream's loss; plain torch is the
    reference."""
    import torch
    from torch.nn.functional import log_softmax

    trainer = _trainer(ctx)
    model = trainer.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lengths = torch.tensor(LENGTHS, device=ctx.device)
    mask = (torch.arange(max(LENGTHS), device=ctx.device) < lengths[:, None]).long()
    prompts = torch.ones(len(LENGTHS), PROMPT, dtype=torch.long, device=ctx.device)
    inputs = {"prompt_mask": prompts, "completion_mask": mask}

    def losses(tokens: Tensor, advantages: Tensor) -> Tensor:
        """The loss of each token, with padding; its gradient is that of the clipped ratio."""
        seen = torch.cat([prompts, mask], dim=1)
        logits = model(input_ids=tokens, attention_mask=seen).logits[:, PROMPT - 1 : -1].float()
        chosen = log_softmax(logits, -1).gather(-1, tokens[:, PROMPT:, None])[..., 0]
        return -advantages[:, None] * chosen

    for step in api.each(ctx.params.steps):
        tokens = torch.randint(4, 32, (len(LENGTHS), PROMPT + max(LENGTHS))).to(ctx.device)
        advantages = torch.randn(len(LENGTHS)).to(ctx.device)
        inputs |= {"prompt_ids": tokens[:, :PROMPT], "completion_ids": tokens[:, PROMPT:]}
        each = losses(tokens, advantages)
        expected = features.of_losses(model, [(each * mask).sum(dim=1).mean()])
        each = losses(tokens, advantages)
        documented = features.of_losses(model, [(each.mean(dim=1) * lengths).mean()])
        optimizer.zero_grad()
        loss = trainer.compute_loss(model, {**inputs, "advantages": advantages})
        loss.backward()
        features.record(ctx, step, loss, features.gradients(model), expected, documented)
        optimizer.step()


def _trainer(ctx: api.Context) -> Any:
    """A GRPOTrainer over a tiny LLaMA; its prompts and rewards are never used."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from scenarios.common import texts
    from scenarios.common.hf_trainer import QUIET, VOCABULARY, llama

    torch.manual_seed(ctx.seed)
    config = GRPOConfig(
        output_dir=str(ctx.folder / "out"),
        use_cpu=ctx.lane is api.Lane.CPU,
        per_device_train_batch_size=len(LENGTHS),
        num_generations=2,
        loss_type="luspo",
        importance_sampling_level=ctx.params.level,
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        **QUIET,
    )
    trainer = GRPOTrainer(
        model=llama().to(ctx.device),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "w1"}]),
        processing_class=texts.tokenizer(VOCABULARY),
    )
    trainer.current_gradient_accumulation_steps = 1  # which train() sets
    trainer.model.train()
    return trainer
