"""transformers' Trainer over a tiny Mixtral, with the gradient of its auxiliary loss apart.

Imports torch and transformers: import it inside ``run``.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM, TrainingArguments

from harness.bugs import api
from scenarios.common import plain_torch
from scenarios.common.hf_trainer import VOCABULARY
from scenarios.transformers._trainer_sgd import IGNORED, Loss, Rows, Watch, sgd

ROWS, LENGTH = 8, 12


def mixtral(coefficient: float) -> MixtralForCausalLM:
    """A Mixtral of one layer with four experts; the auxiliary loss counts ``coefficient``."""
    config = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
        router_aux_loss_coef=coefficient,
        use_cache=False,
    )
    return MixtralForCausalLM(config).to(torch.float32)


def dataset(count: int, seed: int) -> list[Rows]:
    """The same row [LENGTH] many times: so the balance of the experts, and with it the auxiliary
    loss, is the same in each micro-batch as in the whole batch."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)
    labels = tokens.clone()
    labels[0] = IGNORED  # some releases count this label: another bug
    return [{"input_ids": tokens, "labels": labels} for _ in range(count)]


class Apart(Watch):
    """Treats the losses of the task and of the router as two parts of what a step should apply."""

    def plainly(self, batches: list[Rows]) -> plain_torch.Plain:
        """Each loss, twice: the mean of the two is their sum."""
        batch = {
            name: torch.cat([micro_batch[name] for micro_batch in batches]) for name in batches[0]
        }

        def part(weights: Any, auxiliary: bool) -> Tensor:
            answer = torch.func.functional_call(self.plain, dict(weights), (), kwargs=batch)
            # An expert without a token and, in the auxiliary loss, the head have a gradient of 0.
            zero = 0 * sum(weight.sum() for weight in weights.values())
            if auxiliary:
                return 2 * self.ctx.params.coefficient * answer["aux_loss"] + zero
            task = self.loss.total(answer["logits"], batch["labels"])
            return 2 * task / self.loss.count(batch["labels"]) + zero

        return plain_torch.differentiate(part, self.weights, (False, True))


def trainer(ctx: api.Context) -> Any:
    """A Trainer whose steps record the shares of both losses, and the number of micro-batches."""
    params = ctx.params
    torch.manual_seed(ctx.seed)
    settings: dict[str, Any] = {}
    if "average_tokens_across_devices" in inspect.signature(TrainingArguments).parameters:
        settings["average_tokens_across_devices"] = True  # the default since 4.54.0
    return sgd(
        ctx,
        mixtral(params.coefficient),
        Loss(),
        dataset(ROWS * params.steps, ctx.seed),
        size=ROWS // params.accumulation // ctx.world_size,
        more=lambda batches, *_: {"micro_batches": len(batches)},
        watch=Apart,
        **settings,
    )
