"""The Trainer leaves out a label of each row when it counts those of an encoder-decoder model.

This affected users of transformers who train T5, BART and the like with a ``compute_loss_func``
that divides by ``num_items_in_batch``, as the documentation says. With L labels in a row, loss and
gradient are L / (L - 1) times the right ones: 1.33 times with 4, twice with 2, as in classification
by a text. Rows of other lengths change the factor from step to step.

Root cause: since 5.11.0 the Trainer counts ``labels[..., 1:]`` if the loss that belongs to the
model's class shifts the labels; no model predicts the first one then. The class of T5 has such a
loss by its name, although it predicts each label, since its decoder's inputs are shifted instead.
Since 5.15.0 encoder-decoder models are left out of that rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features

if TYPE_CHECKING:
    from torch import Tensor

ROWS, LENGTH = 4, 4

oracle = features.Feature("exactly that follows if the first label of each row is not counted")


def run(ctx: api.Context) -> None:
    """Train on a sum of losses, divided by the Trainer's count; plain torch divides by its own."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import T5Config, T5ForConditionalGeneration, Trainer

    from scenarios.common.hf_trainer import VOCABULARY, arguments, constant, llama

    torch.manual_seed(ctx.seed)
    is_t5 = ctx.params.model == "t5"
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1}
    config = T5Config(**sizes, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0)
    model = (T5ForConditionalGeneration(config) if is_t5 else llama()).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def total(outputs: Any, labels: Tensor) -> tuple[Tensor, int]:
        """The loss of all labels that are predicted, and their number."""
        logits = outputs["logits"]
        if not is_t5:
            logits, labels = logits[:, :-1], labels[:, 1:]
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return loss, labels.numel()

    def divided(outputs: Any, labels: Tensor, num_items_in_batch: Any) -> Tensor:
        return total(outputs, labels)[0] / num_items_in_batch

    def compared(*_: Any) -> None:
        """Record the gradient of a step, before it is applied."""
        actual, inputs = features.gradients(model), seen.pop()
        labels = inputs["input_ids"]
        loss, count = total(model(**inputs), labels)
        seen.clear()
        expected = features.of_losses(model, [loss / count])
        factor = count / labels[:, 1:].numel()
        documented = {name: gradient * factor for name, gradient in expected.items()}
        features.record(ctx, next(steps), loss / count, actual, expected, documented)

    def noted(_: Any, __: Any, inputs: Any) -> None:
        seen.append(inputs)

    seen, steps = list[Any](), iter(api.each(ctx.params.steps))
    optimizer.register_step_pre_hook(compared)
    model.register_forward_pre_hook(noted, with_kwargs=True)
    tokens = torch.randint(4, VOCABULARY, (ROWS * ctx.params.steps, LENGTH))
    names = ["input_ids", "labels", *(["decoder_input_ids"] if is_t5 else [])]
    Trainer(
        model=model,
        args=arguments(
            ctx, ctx.folder, per_device_train_batch_size=ROWS, max_steps=ctx.params.steps
        ),
        train_dataset=[dict.fromkeys(names, row) for row in tokens],
        optimizers=(optimizer, constant(optimizer)),
        compute_loss_func=divided,
    ).train()
