"""trl's SFTTrainer with DoRA over a tiny LLaMA, which may be quantized.

Imports torch, transformers, peft and trl: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

from harness.bugs import api
from scenarios.common import texts
from scenarios.common.hf_trainer import QUIET, VOCABULARY

MAGNITUDE = "lora_magnitude_vector"
LEAST = 4
"""The first token of the data set: the others before it are special."""


def train(ctx: api.Context) -> None:
    """Train, and record what each step changed."""
    with ctx.phase("init"):
        trainer = _trainer(ctx)
        _Watch(ctx, trainer)
    with ctx.phase("steps"):
        trainer.train()


def _trainer(ctx: api.Context) -> Any:
    tokenizer = texts.tokenizer(VOCABULARY)
    draw = torch.Generator().manual_seed(ctx.seed)
    ids = torch.randint(LEAST, VOCABULARY, (16, 8), generator=draw).tolist()
    config = SFTConfig(
        output_dir=str(ctx.folder / "out"),
        use_cpu=ctx.lane is api.Lane.CPU,
        seed=ctx.seed,
        max_steps=ctx.params.steps,
        learning_rate=ctx.params.lr,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        bf16=False,
        gradient_checkpointing=False,
        dataset_text_field="text",
        **QUIET,
    )
    return SFTTrainer(
        model=_base(ctx),
        args=config,
        train_dataset=Dataset.from_dict(
            {"text": [" ".join(tokenizer.convert_ids_to_tokens(row)) for row in ids]}
        ),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "v_proj"]),
    )


def _base(ctx: api.Context) -> Any:
    """The base model, read from a folder as users do."""
    torch.manual_seed(ctx.seed)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=VOCABULARY, num_attention_heads=2, **sizes)
    folder = ctx.folder / "base"
    LlamaForCausalLM(config).save_pretrained(folder)
    if ctx.params.bits == 32:
        return AutoModelForCausalLM.from_pretrained(folder)
    quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantized)


class _Watch:
    """Compares the trainable weights before and after each step of the optimizer."""

    def __init__(self, ctx: api.Context, trainer: Any) -> None:
        self.ctx, self.model, self.step = ctx, trainer.model, 0
        optimizer = trainer.create_optimizer()
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _weights(self, magnitudes: bool) -> list[torch.nn.Parameter]:
        named = self.model.named_parameters()
        return [p for name, p in named if p.requires_grad and (MAGNITUDE in name) == magnitudes]

    def _before(self, *_: Any) -> None:
        self.old = [p.detach().clone() for part in (True, False) for p in self._weights(part)]

    def _after(self, *_: Any) -> None:
        self.step += 1
        magnitudes, others = self._weights(True), self._weights(False)
        changes = [
            float((new.detach() - old).abs().max())
            for new, old in zip([*magnitudes, *others], self.old, strict=True)
        ]
        gradients = [p.grad.float().flatten() for p in magnitudes if p.grad is not None]
        self.ctx.record(
            "step",
            self.step,
            kind_of_number=str(magnitudes[0].dtype).removeprefix("torch."),
            gradient=float(torch.cat(gradients).norm()),
            moved=max(changes[: len(magnitudes)]),
            others=max(changes[len(magnitudes) :]),
        )
