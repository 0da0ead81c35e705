"""SFTTrainer never trains the end of a sequence if the tokenizer pads with its EOS token.

The last label of each example, the EOS, is -100, as if it were padding. All other labels are right,
and the loss falls. The model never learns to stop: after the training it generates up to the limit.
Tutorials set ``tokenizer.pad_token = tokenizer.eos_token`` for tokenizers without a padding token,
and the trainer does the same where it loads the tokenizer itself. Here 0 of 8 ends are trained.

Root cause: the trainer uses transformers' DataCollatorForLanguageModeling, which masks each label
that is the padding token, wherever it is. trl 0.16.1 has a collator of its own, which pads the
labels with -100 and does not look at the tokens.
"""

from __future__ import annotations

import inspect
from typing import Any

from harness.bugs import api
from scenarios.common import plain_loss, usual_checks
from scenarios.trl.eos_masked import labels

OWN, EOS, WORDS, VOCABULARY = 0, 2, 4, 32
"""Tokens of ``common.texts``: its own padding token, the EOS, the first word, and their number."""

BATCH = 4


picture = labels.trained


def _rows(params: Any) -> list[list[int]]:
    """The examples as tokens: some words, one more than in the row before, and the EOS."""
    words = VOCABULARY - WORDS
    return [
        [*(WORDS + (row + position) % words for position in range(4 + row)), EOS]
        for row in range(params.rows)
    ]


def _pad(params: Any) -> int:
    return EOS if params.pad == "eos" else OWN


def plan(at: api.Position) -> api.Plan:
    """The dataset; then, for each step, what the model got, and its loss."""
    return labels.plan(_rows(at.params), EOS, _pad(at.params), BATCH, at.params.epochs)


def run(ctx: api.Context) -> None:
    """Fine-tune a tiny model on texts; record the labels that it got."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from scenarios.common import texts
    from scenarios.common.hf_trainer import llama
    from scenarios.trl.eos_masked.watch import watch

    p = ctx.params
    with ctx.phase("init"):
        tokenizer, model = texts.tokenizer(VOCABULARY, _pad(p)), llama().to(ctx.device)
        written = [" ".join(tokenizer.convert_ids_to_tokens(row)) for row in _rows(p)]
        rows = tokenizer(written)["input_ids"]
        ctx.record("dataset", rows=rows, eos=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)
        watch(ctx.record, model)
        config = SFTConfig(
            output_dir=str(ctx.folder / "out"),
            use_cpu=ctx.lane is api.Lane.CPU,
            seed=ctx.seed,
            report_to=[],
            per_device_train_batch_size=BATCH,
            num_train_epochs=p.epochs,
            learning_rate=p.lr,
            save_strategy="no",
            disable_tqdm=True,
            bf16=False,
            gradient_checkpointing=False,
            dataset_text_field="text",
            dataloader_pin_memory=False,
        )
        accepted = inspect.signature(SFTTrainer.__init__).parameters
        name = "processing_class" if "processing_class" in accepted else "tokenizer"
        trainer = SFTTrainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_dict({"text": written}),
            **{name: tokenizer},
        )
    with ctx.phase("steps"):
        trainer.train()


def detect(records: api.Records) -> api.Finding | None:
    """Each example's last label, its EOS, is masked. All others are its tokens, each epoch has
    every example once, and the loss is that of these labels."""
    examples = labels.examples(records)
    faults = [one for one in examples if one.faults]
    odd = [
        f"step {one.step}: the labels of {one.ids} are {one.labels}"
        for one in faults
        if not one.end_masked
    ]
    odd += labels.otherwise_wrong(records)
    if odd:
        return api.Finding("\n".join(odd[:3]), documented=False)
    if not faults:
        return None
    return api.Finding(
        f"{len(faults)} of {len(examples)} end-of-sequence labels are masked out of the loss",
        step=faults[0].step,
        ranks=records.ranks,
        magnitude=len(faults) / len(examples),
        unit="of the end-of-sequence labels",
        documented=len(faults) == len(examples),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The padding token was the EOS token, and examples that end with it were padded."""
    dataset = records.of("dataset")[0]
    text = f"the padding token was {dataset['pad']}, the EOS token {dataset['eos']}"
    return api.Exercise.of(dataset["pad"] == dataset["eos"], text) & labels.ended(records)


insufficient_checks = api.together(
    usual_checks.loss_ends_higher, plain_loss.loss_unlike_reference, labels.padding_trained
)
