"""trl's GRPOTrainer over a tiny LLaMA with rewards that are computed in code, watched step by step.

All prompts have the same length, and so have all completions: the model may not generate special
tokens. Imports torch, transformers and trl: import it inside ``run``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from trl import GRPOConfig, GRPOTrainer

from harness.bugs import api
from scenarios.common import plain_torch, texts
from scenarios.common.hf_trainer import QUIET, VOCABULARY, constant, llama
from scenarios.common.hf_watched import Watched

BATCH, GENERATIONS, LENGTH = 4, 2, 6
"""Completions of a micro-batch, completions of a prompt, and tokens of a completion."""
EPSILON = 0.2
"""How far a token's probability may move before GRPO clips it; trl's default."""

Weights = Mapping[str, Tensor]


def trainer(
    ctx: api.Context, loss_type: str, generation: int, accumulation: int, steps: int
) -> Any:
    """A GRPOTrainer with SGD at a constant rate, without clipping and KL, watched step by step."""
    torch.manual_seed(ctx.seed)
    tokenizer, policy = texts.tokenizer(VOCABULARY), llama().to(ctx.device)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # LLaMA takes no token types
    optimizer = torch.optim.SGD(policy.parameters(), lr=ctx.params.lr)
    watch = Watch(ctx, policy, optimizer)
    config = GRPOConfig(
        output_dir=str(ctx.folder / "out"),
        use_cpu=ctx.lane is api.Lane.CPU,
        seed=ctx.seed,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=generation,
        num_generations=GENERATIONS,
        max_completion_length=LENGTH,
        generation_kwargs={"suppress_tokens": [*range(len(texts.SPECIAL))]},
        loss_type=loss_type,
        scale_rewards=False,
        beta=0.0,
        epsilon=EPSILON,
        max_steps=steps,
        bf16=False,
        gradient_checkpointing=False,
        **QUIET,
    )
    start = len(texts.SPECIAL)
    words = [f"w{n} w{n + 1} w{n + 2}" for n in range(VOCABULARY - start - 2)]
    return GRPOTrainer(
        model=policy,
        reward_funcs=watch.reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": text} for text in words]),
        processing_class=tokenizer,
        optimizers=(optimizer, constant(optimizer)),
    )


class Watch(Watched):
    """Rewards completions. Records what each step applied, and what plain torch computes on the
    completions that the model got."""

    def __init__(
        self, ctx: api.Context, policy: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(ctx, policy, optimizer)
        self.advantages: dict[tuple[int, ...], float] = {}
        """Of each completion that was generated last, by its tokens."""
        self.generated: Weights = {}
        """The weights that these completions were generated with."""

    def reward(self, prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        """A reward for each completion of a generation, which trl compares within its group."""
        self.generated = plain_torch.copied(self.model)
        rewards = [float(sum(tokens) % 11) for tokens in completion_ids]
        groups: dict[str, list[float]] = {}
        for prompt, reward in zip(prompts, rewards, strict=True):
            groups.setdefault(prompt, []).append(reward)
        self.advantages = {
            tuple(map(int, tokens)): reward - sum(groups[prompt]) / len(groups[prompt])
            for prompt, tokens, reward in zip(prompts, completion_ids, rewards, strict=True)
        }
        return rewards

    def _note_batch(self, _: Any, __: Any, keywords: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        tokens = keywords["input_ids"].detach().clone()
        advantages = [self.advantages[tuple(row)] for row in tokens[:, -LENGTH:].tolist()]
        with torch.no_grad():
            before = self._completions(self.generated, tokens)
        self.seen.append((tokens, torch.tensor(advantages, device=tokens.device), before))

    def facts(self) -> dict[str, Any]:
        plain = plain_torch.differentiate(self._loss, self.weights, self.seen)
        return {"micro_batches": len(self.seen), **self._applied(plain)}

    def _loss(self, weights: Weights, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """GRPO's loss, a mean over the tokens of a micro-batch."""
        tokens, advantages, before = batch
        ratio = (self._completions(weights, tokens) - before).exp()
        clipped = ratio.clamp(1 - EPSILON, 1 + EPSILON)
        factors = advantages[:, None]
        return -torch.minimum(ratio * factors, clipped * factors).mean()

    def _completions(self, weights: Weights, tokens: Tensor) -> Tensor:
        """The log-probabilities of the tokens of each row's completion, [rows, LENGTH]."""
        inputs = {"input_ids": tokens}
        answer = torch.func.functional_call(self.plain, dict(weights), (), kwargs=inputs)
        logits = answer["logits"][:, -LENGTH - 1 : -1].float()
        return log_softmax(logits, -1).gather(-1, tokens[:, -LENGTH:, None])[..., 0]
