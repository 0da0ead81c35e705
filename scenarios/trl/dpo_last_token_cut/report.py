"""Train DPO for a step on prompts of 1 and 2 words: has each row that the model gets its end?

Needs torch, transformers and trl, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
special = {"pad_token": "w0", "eos_token": "w1"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
longer = {"prompt": "w5 w6", "chosen": " w9 w8", "rejected": " w4"}
shorter = {"prompt": "w7", "chosen": " w3 w9 w8", "rejected": " w4 w2"}
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
config = transformers.LlamaConfig(**sizes, num_attention_heads=2)
policy, reference = (transformers.LlamaForCausalLM(config) for _ in range(2))
once = {"max_steps": 1, "use_cpu": True, "save_strategy": "no", "report_to": []}
args = trl.DPOConfig(tempfile.mkdtemp(), per_device_train_batch_size=2, **once)
ends: list[int] = []


def count(_: Any, __: Any, keywords: dict[str, torch.Tensor]) -> None:
    ends.append(int((keywords["input_ids"] == tokenizer.eos_token_id).sum()))


policy.register_forward_pre_hook(count, with_kwargs=True)
data = {"train_dataset": Dataset.from_list([longer, shorter]), "processing_class": tokenizer}
trl.DPOTrainer(policy, reference, args=args, **data).train()
print(f"trl {trl.__version__}: {ends[0]} of 4 rows have the token for the end")
print("WRONG: the longest lack it" if ends[0] < 4 else "right: all have it")
raise SystemExit(3 if ends[0] < 4 else 0)
