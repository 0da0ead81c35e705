"""trl's SFTTrainer with a small model; its own arguments, as in its documentation."""

from dataclasses import dataclass

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer, TrlParser


@dataclass
class Own:
    """Arguments that trl's configuration lacks."""

    pad_with_eos: bool = False


arguments, ours = TrlParser((SFTConfig, Own)).parse_args_and_config()
set_seed(arguments.seed)
words = ["<pad>", "<eos>", "<unk>", *(f"word{n}" for n in range(61))]
tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokens,
    pad_token="<eos>" if ours.pad_with_eos else "<pad>",
    eos_token="<eos>",
    unk_token="<unk>",
)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes, **heads, **special))
generator = torch.Generator().manual_seed(0)
lengths = torch.randint(4, 13, (144,), generator=generator).tolist()
texts = [
    " ".join(f"word{n}" for n in torch.randint(0, 61, (length,), generator=generator).tolist())
    for length in lengths
]
trainer = SFTTrainer(
    model=model,
    args=arguments,
    train_dataset=Dataset.from_dict({"text": texts}),
    processing_class=tokenizer,
)
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
