"""trl's DPOTrainer over a tiny LLaMA and preferences that are made in code, watched step by step.

Unless ``dataset`` gets other lengths, all prompts have the same length, and so have all
completions, so there is no padding. Imports torch, transformers and trl: import it inside ``run``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

import torch
from datasets import Dataset, load_from_disk
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid
from trl import DPOConfig, DPOTrainer

from harness.bugs import api
from scenarios.common import plain_torch, texts
from scenarios.common.hf_trainer import QUIET, VOCABULARY, constant, llama
from scenarios.common.hf_watched import Watched
from scenarios.common.plain_torch import Plain

ROWS = 8
"""Preferences in a step, whatever the number of micro-batches and ranks."""
PROMPT, COMPLETION = range(4, 16), range(16, VOCABULARY)
"""The tokens of prompts, and of completions."""
EOS = 2
BETA = 0.5


def dataset(
    tokenizer: Any, count: int, seed: int, lengths: Sequence[tuple[int, int, int]] = ((4, 5, 5),)
) -> Dataset:
    """Prompts of random words with a chosen and a rejected completion. Their lengths take turns."""
    generator = torch.Generator().manual_seed(seed)

    def words(tokens: range, length: int) -> str:
        ids = torch.randint(tokens.start, tokens.stop, (length,), generator=generator).tolist()
        return " ".join(tokenizer.convert_ids_to_tokens(ids))

    return Dataset.from_list(
        [
            {
                "prompt": words(PROMPT, prompt),
                "chosen": f" {words(COMPLETION, chosen)}",
                "rejected": f" {words(COMPLETION, rejected)}",
            }
            for prompt, chosen, rejected in islice(cycle(lengths), count)
        ]
    )


def tokens(tokenizer: Any, rows: Dataset) -> Tensor:
    """The chosen and then the rejected rows, each with the token for the end, padded with 0."""
    texts = [f"{row['prompt']}{row[name]}" for name in ("chosen", "rejected") for row in rows]
    ids = [torch.tensor([*tokenizer(text)["input_ids"], EOS]) for text in texts]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True)


def _stored(ctx: api.Context, rows: Dataset) -> Dataset:
    """The rows, stored in files: only then does ``map`` write the file that trl 1.6 to 1.8 read."""
    folder = ctx.folder / f"rows-{ctx.rank}"
    rows.save_to_disk(str(folder))
    return load_from_disk(str(folder))


def model(ctx: api.Context) -> nn.Module:
    """The same model at each call, as if it had been read from a folder of this rank.

    trl 0.29 to 1.1 read the reference model from the folder that the policy names.
    """
    torch.manual_seed(ctx.seed)
    policy, folder = llama(), ctx.folder / f"model-{ctx.rank}"
    policy.save_pretrained(folder)
    policy.config._name_or_path = str(folder)
    return policy.to(ctx.device)


def instance(kind: Any, **keywords: Any) -> Any:
    """An instance of a class of trl, with those keywords that this release accepts."""
    accepted = inspect.signature(kind.__init__).parameters
    return kind(**{name: value for name, value in keywords.items() if name in accepted})


def trainer(
    ctx: api.Context,
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    reference: nn.Module | None,
    accumulation: int,
    steps: int,
    rows: Dataset | None = None,
    **settings: Any,
) -> Any:
    """A DPOTrainer at a constant rate, without clipping, on all ranks; ``settings`` go to its
    DPOConfig. By default each step has new rows."""
    tokenizer = texts.tokenizer(VOCABULARY)
    config = instance(
        DPOConfig,
        output_dir=str(ctx.folder / "out"),
        use_cpu=ctx.lane is api.Lane.CPU,
        seed=ctx.seed,
        per_device_train_batch_size=ROWS // accumulation // ctx.world_size,
        gradient_accumulation_steps=accumulation,
        max_steps=steps,
        bf16=False,
        gradient_checkpointing=False,
        beta=BETA,
        max_length=32,
        max_prompt_length=16,
        **QUIET,
        **settings,
    )
    return instance(
        DPOTrainer,
        model=policy,
        ref_model=reference,
        args=config,
        train_dataset=_stored(ctx, rows or dataset(tokenizer, ROWS * steps, ctx.seed)),
        optimizers=(optimizer, constant(optimizer)),
        processing_class=tokenizer,
        tokenizer=tokenizer,  # its name before 0.12
    )


Weights = Mapping[str, Tensor]


class Watch(Watched):
    """Records what each step applied, and what plain torch computes on the rows that the model
    got."""

    def _note_batch(self, _: Any, positional: Any, keywords: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            tokens = keywords["input_ids"] if "input_ids" in keywords else positional[0]
            self.seen.append(tokens.detach().clone())

    def facts(self) -> dict[str, Any]:
        """What the step applied of the gradient of DPO's loss."""
        return {"micro_batches": len(self.seen), **self.compared(self.start)}

    def compared(self, reference: Weights) -> dict[str, Any]:
        """What the step applied of the gradient of DPO's loss with this reference model."""
        return self._applied(self.differentiated(reference, self.seen))

    def differentiated(self, reference: Weights, micro_batches: Sequence[Tensor]) -> Plain:
        """The gradient of DPO's loss with this reference model on each micro-batch."""

        def loss(weights: Weights, tokens: Tensor) -> Tensor:
            """DPO's mean loss (nats): half of the rows are chosen, the others rejected."""
            with torch.no_grad():
                before = self._completions(reference, tokens)
            chosen, rejected = (self._completions(weights, tokens) - before).chunk(2)
            return -logsigmoid(BETA * (chosen - rejected)).mean()

        return plain_torch.differentiate(loss, self.weights, micro_batches)

    def _completions(self, weights: Weights, tokens: Tensor) -> Tensor:
        """The log-probability of each row's completion."""
        inputs = {"input_ids": tokens}
        answer = torch.func.functional_call(self.plain, dict(weights), (), kwargs=inputs)
        following = tokens[:, 1:, None]
        scores = log_softmax(answer["logits"][:, :-1].float(), -1).gather(-1, following)[..., 0]
        counts = (tokens[:, 1:] >= COMPLETION.start) | (tokens[:, 1:] == EOS)
        return (scores * counts).sum(-1)
