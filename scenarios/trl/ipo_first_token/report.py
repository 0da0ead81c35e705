"""Compute IPO's loss of two completions that fill max_length: which tokens divide their scores?

Needs torch, transformers, datasets and trl, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models

words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
special: Any = {"pad_token": "w0", "eos_token": "w1"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
sizes: Any = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
config = transformers.LlamaConfig(**sizes, num_attention_heads=2)
model, reference = (transformers.LlamaForCausalLM(config) for _ in range(2))
reference.load_state_dict(model.state_dict())
args: Any = {"loss_type": "ipo", "truncation_mode": "keep_end", "max_length": 4, "beta": 0.5}
args |= {"use_cpu": True, "bf16": False, "report_to": [], "gradient_checkpointing": False}
data: Any = Dataset.from_list([{"prompt": "w2", "chosen": "w3", "rejected": "w4"}])
args, more = trl.DPOConfig(tempfile.mkdtemp(), **args), {"processing_class": tokenizer}
trainer: Any = trl.DPOTrainer(model, reference, args=args, train_dataset=data, **more)
row = {"prompt_ids": [2, 3], "chosen_ids": [4, 5, 6, 7, 8], "rejected_ids": [9, 10, 11, 12, 13]}
batch = trainer.data_collator([row])  # no token of the prompt is left
trainer.compute_loss(model, batch).backward()
actual = float(model.lm_head.weight.grad.norm())
scores = torch.log_softmax(model(batch["input_ids"]).logits[:, :-1], -1)
means = scores.gather(-1, batch["input_ids"][:, 1:, None])[..., 0].mean(1)  # of 3 tokens
delta = means[0] - means[1]
model.zero_grad()
(delta - delta.detach() - 1).square().backward()  # the reference is the same model
right = float(model.lm_head.weight.grad.norm())
print(f"trl {trl.__version__}: the gradient is {actual / right:.4f} times that of the mean")
print("WRONG: a token without a score counts" if actual < 0.99 * right else "right: the same")
raise SystemExit(3 if actual < 0.99 * right else 0)
