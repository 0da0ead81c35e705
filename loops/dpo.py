"""trl's DPOTrainer with a small model and preferences of words; its own arguments, as in its docs.

All prompts have one length, and so have all completions: a mean over tokens is the same in each
micro-batch.
"""

import inspect

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    set_seed,
)
from trl import DPOConfig, DPOTrainer

(arguments,) = HfArgumentParser(DPOConfig).parse_args_into_dataclasses()
set_seed(arguments.seed)
words = ["<pad>", "<eos>", "<unk>", *(f"word{n}" for n in range(61))]
tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokens,
    pad_token="<pad>",
    bos_token="<eos>",
    eos_token="<eos>",
    unk_token="<unk>",
)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
config = LlamaConfig(vocab_size=64, **sizes, **heads, **special)
model, reference = LlamaForCausalLM(config), LlamaForCausalLM(config)
reference.load_state_dict(model.state_dict())
generator = torch.Generator().manual_seed(0)


def some(count):
    numbers = torch.randint(0, 61, (count,), generator=generator).tolist()
    return " ".join(f"word{n}" for n in numbers)


rows = [{"prompt": some(4), "chosen": f" {some(5)}", "rejected": f" {some(5)}"} for _ in range(144)]
accepted = inspect.signature(DPOTrainer.__init__).parameters
name = "processing_class" if "processing_class" in accepted else "tokenizer"
trainer = DPOTrainer(
    model=model,
    ref_model=reference,
    args=arguments,
    train_dataset=Dataset.from_list(rows),
    **{name: tokenizer},
)
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
