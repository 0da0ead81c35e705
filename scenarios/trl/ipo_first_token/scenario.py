"""With IPO and keep_end, DPO divides by a token that it does not score if no prompt is left.

This affects users of trl's DPOTrainer with ``loss_type="ipo"`` or ``"sigmoid_norm"`` and
``truncation_mode="keep_end"``. If a completion fills ``max_length``, no token of the prompt is
left, and nothing predicts the first token of the row. Its score is a sum over L - 1 tokens, and is
divided by L. So a pair of such rows pulls with (L - 1) / L of the right force, and a pair of which
only one is truncated compares two different means.

Root cause: both losses take the number of tokens from the completion mask before it is shifted.
The scores are masked by the shifted one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features

if TYPE_CHECKING:
    from torch import Tensor

BETA = 0.5

oracle = features.Feature("exactly that follows if the first token of a row is counted", checks=())


def shifted(function: Any) -> api.Edits:
    """IPO, the first loss that counts tokens, takes the shifted mask."""
    import libcst as cst
    import libcst.matchers as m

    unshifted = m.Attribute(m.Name("completion_mask"), m.Name("chunk"))
    places: Any = m.findall(function, unshifted)
    yield places[0].value, cst.Name("shift_completion_mask")


def run(ctx: api.Context) -> None:
    """Compute upstream's loss of pairs that are truncated; plain torch is the reference."""
    import torch
    from torch.nn.functional import log_softmax
    from trl import DPOConfig, DPOTrainer

    from scenarios.common import texts
    from scenarios.common.hf_trainer import QUIET, VOCABULARY
    from scenarios.trl import _preferences as preferences

    model, reference = preferences.model(ctx), preferences.model(ctx)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokenizer = texts.tokenizer(VOCABULARY)
    trainer = DPOTrainer(
        model=model,
        ref_model=reference,
        args=DPOConfig(
            output_dir=str(ctx.folder / "out"),
            use_cpu=ctx.lane is api.Lane.CPU,
            loss_type="ipo",
            truncation_mode="keep_end",
            max_length=ctx.params.longest,
            beta=BETA,
            bf16=False,
            gradient_checkpointing=False,
            **QUIET,
        ),
        train_dataset=preferences.dataset(tokenizer, 4, ctx.seed),
        processing_class=tokenizer,
    )

    def loss(batch: Any, mask: Tensor) -> Tensor:
        """IPO's loss, whose scores are divided by the tokens of the mask."""
        scored = batch["completion_mask"][:, 1:]

        def score(scorer: Any) -> Tensor:
            logits = scorer(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            following = batch["input_ids"][:, 1:, None]
            chosen: Tensor = log_softmax(logits[:, :-1], -1).gather(-1, following)[..., 0]
            return (chosen * scored).sum(1) / mask.sum(1)

        with torch.no_grad():
            before = score(reference)
        chosen, rejected = (score(model) - before).chunk(2)
        return (chosen - rejected - 1 / (2 * BETA)).square().mean()

    for step in api.each(ctx.params.steps):
        ids = torch.randint(4, VOCABULARY, (4, 14)).tolist()
        names = {"prompt_ids": slice(0, 2), "chosen_ids": slice(2, 8), "rejected_ids": slice(8, 14)}
        examples = [{name: row[part] for name, part in names.items()} for row in ids]
        batch = {k: v.to(ctx.device) for k, v in trainer.data_collator(examples).items()}
        mask = batch["completion_mask"]
        expected = features.of_losses(model, [loss(batch, mask[:, 1:])])
        documented = features.of_losses(model, [loss(batch, mask)])
        optimizer.zero_grad()
        value = trainer.compute_loss(model, batch)
        value.backward()
        features.record(ctx, step, value, features.gradients(model), expected, documented)
        optimizer.step()
