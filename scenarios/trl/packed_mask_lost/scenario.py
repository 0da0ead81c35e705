"""Packing makes trl train on the user's turns although assistant_only_loss is set.

This affects users who fine-tune a chat model and pack, as most do to save time. The model learns to
write the questions as well as the answers, and each answer has a smaller part in the loss. The loss
falls. Here 96 of 96 tokens are trained, where 48 are the assistant's.

Root cause: before it packs, SFTTrainer selects the column ``input_ids``, which drops the mask of
the assistant's tokens. The collator masks the labels only if it gets a mask. Since the fix the mask
is packed, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.bugs import api

ANSWERS = 18
"""Words from this token on are the assistant's alone; the user has those from 4 on."""
TURN = 6
"""Tokens of a turn. A conversation has two, and a packed row two conversations."""
BATCH = 2

TEMPLATE = """\
{%- for turn in messages %}
{%- if turn.role == 'assistant' %}
{%- generation %}{{ turn.content + ' ' }}{%- endgeneration %}
{%- else %}{{ turn.content + ' ' }}
{%- endif %}
{%- endfor %}"""


@dataclass(frozen=True)
class Step(api.Entry):
    tokens: api.Count
    """Of the batch."""
    answers: api.Count
    """How many of them are the assistant's."""
    trained: api.Count
    """How many of them have a label."""
    answers_trained: api.Count
    loss: api.Number


def plan(at: api.Position) -> api.Plan:
    """The batches of one epoch."""
    rows = at.params.rows // (2 if at.params.packing else 1)
    return {"step": api.Kind(Step.shapes(), api.each(rows // BATCH))}


def conversation(number: int) -> list[dict[str, str]]:
    """A question and an answer of words that are not in the same part of the vocabulary."""
    words = range(TURN)
    asked = (f"w{(number + word) % (ANSWERS - 4)}" for word in words)
    answered = (f"w{ANSWERS - 4 + (number + word) % 10}" for word in words)
    return [
        {"role": "user", "content": " ".join(asked)},
        {"role": "assistant", "content": " ".join(answered)},
    ]


def run(ctx: api.Context) -> None:
    """Fine-tune a tiny model on conversations; count the labels that it gets."""
    from itertools import count

    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from scenarios.common import texts
    from scenarios.common.hf_trainer import VOCABULARY, llama

    p, model, steps = ctx.params, llama().to(ctx.device), count(1)
    tokenizer = texts.tokenizer(VOCABULARY)
    tokenizer.chat_template = TEMPLATE

    def note(_: Any, __: Any, inputs: dict[str, Any], answer: Any) -> None:
        is_answer, has_label = inputs["input_ids"] >= ANSWERS, inputs["labels"] != -100
        ctx.record(
            "step",
            next(steps),
            tokens=is_answer.numel(),
            answers=int(is_answer.sum()),
            trained=int(has_label.sum()),
            answers_trained=int((is_answer & has_label).sum()),
            loss=float(answer.loss.detach()),
        )

    model.register_forward_hook(note, with_kwargs=True)
    config = SFTConfig(
        output_dir=str(ctx.folder / "out"),
        use_cpu=ctx.lane is api.Lane.CPU,
        seed=ctx.seed,
        report_to=[],
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        save_strategy="no",
        disable_tqdm=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        max_length=4 * TURN,
        packing=p.packing,
        assistant_only_loss=True,
    )
    rows = Dataset.from_dict({"messages": [conversation(row) for row in range(p.rows)]})
    SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=tokenizer).train()


def detect(records: api.Records) -> api.Finding | None:
    """All tokens of each batch have a label, the user's as well as the assistant's."""
    steps = records.typed(Step)
    wrong_steps = [step for step in steps if {step.trained, step.answers_trained} != {step.answers}]
    if not wrong_steps:
        return None
    trained, tokens, answers = (
        sum(getattr(step, name) for step in steps) for name in ("trained", "tokens", "answers")
    )
    return api.Finding(
        f"{trained} of {tokens} tokens are trained, where {answers} are the assistant's",
        step=wrong_steps[0].step,
        ranks=records.ranks,
        magnitude=trained / answers,
        unit="times as many labels as the assistant's tokens",
        documented=all(step.trained == step.tokens for step in steps),
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """A usual check of a collator."""
    return {"a batch has no label": any(not step.trained for step in records.typed(Step))}


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """How many tokens are trained."""
    bars = [
        (variant, name, float(sum(getattr(step, fact) for step in records.typed(Step))))
        for variant, records in trials.items()
        for name, fact in (("the assistant's", "answers"), ("trained", "trained"))
    ]
    yield api.Bars("Tokens", "with the bug the user's tokens are trained, too", bars, "tokens")
