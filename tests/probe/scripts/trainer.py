"""transformers' Trainer with a small language model; its own arguments, as in run_clm.py."""

import sys

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

kind = sys.argv.pop() if sys.argv[-1] in ("llama", "gpt2") else "llama"
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(sys.argv[1:])
set_seed(arguments.seed)
if kind == "llama":
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes, **heads, attention_dropout=0.1))
else:
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    )


class Rows(torch.utils.data.Dataset):
    """144 rows of unequal length, padded with labels that do not count."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(1, 64, (144, 12), generator=generator)
        self.lengths = torch.randint(6, 13, (144,), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index):
        keep = torch.arange(12) < self.lengths[index]
        ids = self.ids[index].where(keep, torch.zeros(()).long())
        labels = ids.where(keep, torch.tensor(-100))
        return {"input_ids": ids, "attention_mask": keep.long(), "labels": labels}


trainer = Trainer(model=model, args=arguments, train_dataset=Rows())
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
