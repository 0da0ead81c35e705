"""Online DPO scores answers at other positions than it generated them at, with learned positions.

This affects users of trl's OnlineDPOTrainer, and of XPO and Nash-MD, which inherit from it, with a
model that has learned positions, such as GPT-2. Prompts are padded on the left. When an answer is
generated, its positions are counted without the padding; when it is scored, with it. So the loss
is that of other rows than the model wrote, and each row shorter than the longest one trains other
positions than it will have later. Rotary positions are relative, so such models do not feel it.
Rewards, margins and the loss look plausible.

Root cause: ``_forward`` passes the attention mask and no ``position_ids``; GPT-2 then counts by
place. ``generate`` makes them from the mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features
from scenarios.common.line_edits import followed, setting

if TYPE_CHECKING:
    from torch import Tensor

BETA = 0.5

oracle = features.Feature("exactly that follows if positions are counted from the padding on")


def placed(function: Any) -> api.Edits:
    """Pass the positions that ``generate`` uses."""
    seen = "prompt_completion_mask"
    positions = f'model_kwargs["position_ids"] = ({seen}.cumsum(1) - 1).clamp(min=0)'
    yield from followed(setting(function, "model_kwargs"), positions)


def run(ctx: api.Context) -> None:
    """Train on answers that upstream generates; plain torch scores the same answers."""
    import copy

    import torch
    from torch.nn.functional import log_softmax, logsigmoid

    trainer = _trainer(ctx)
    model, reference = trainer.model, copy.deepcopy(trainer.model)
    trainer.ref_model = reference
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generate, rows = trainer._generate, []

    def noted(*inputs: Any) -> Any:
        rows.append(generate(*inputs))
        return rows[-1]

    trainer._generate = noted

    def scores(scorer: Any, positions: Tensor) -> Tensor:
        """The log-probability of each answer of the last step."""
        prompts, prompt_mask, answers, mask = rows[-1][:4]
        tokens, seen = torch.cat([prompts, answers], 1), torch.cat([prompt_mask, mask], 1)
        logits = scorer(tokens, attention_mask=seen, position_ids=positions).logits
        logits = logits[:, prompts.shape[1] - 1 : -1]
        chosen = log_softmax(logits, -1).gather(-1, answers[..., None])[..., 0]
        return (chosen * mask).sum(1)

    def loss(positions: Tensor) -> Tensor:
        """DPO's loss; the answer whose first token is the larger one is chosen."""
        with torch.no_grad():
            before = scores(reference, positions)
        first, second = (scores(model, positions) - before).chunk(2)
        a, b = rows[-1][2][:, 0].chunk(2)
        margins = torch.where(a >= b, first - second, second - first)
        return -logsigmoid(BETA * margins).mean()

    lengths = {"unequal": (2, 5, 3, 4), "equal": (4, 4, 4, 4)}[ctx.params.prompts]
    for step in api.each(ctx.params.steps):
        optimizer.zero_grad()
        prompts = [" ".join(f"w{step + n}" for n in range(length)) for length in lengths]
        applied = trainer.training_step(model, {"prompt": prompts})
        actual = features.gradients(model)
        mask = torch.cat([rows[-1][1], rows[-1][3]], 1)
        places = torch.arange(mask.shape[1], device=ctx.device).expand_as(mask)
        expected = features.of_losses(model, [loss((mask.cumsum(1) - 1).clamp(min=0))])
        documented = features.of_losses(model, [loss(places)])
        features.record(ctx, step, applied, actual, expected, documented)
        optimizer.step()


def _trainer(ctx: api.Context) -> Any:
    """An OnlineDPOTrainer over a tiny GPT-2; the reward of an answer is its first token."""
    import torch
    from datasets import Dataset
    from transformers import GPT2Config, GPT2LMHeadModel
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    from scenarios.common import texts
    from scenarios.common.hf_trainer import QUIET, VOCABULARY

    torch.manual_seed(ctx.seed)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = OnlineDPOConfig(
        output_dir=str(ctx.folder / "out"),
        use_cpu=ctx.lane is api.Lane.CPU,
        max_new_tokens=6,
        max_length=32,
        beta=BETA,
        bf16=False,
        gradient_checkpointing=False,
        **QUIET,
    )
    return OnlineDPOTrainer(
        model=GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).to(ctx.device),
        reward_funcs=lambda completion_ids, **_: [float(ids[0]) for ids in completion_ids],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "w1"}]),
        processing_class=texts.tokenizer(VOCABULARY),
    )
