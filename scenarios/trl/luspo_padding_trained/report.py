"""Compute GRPO's luspo loss of two completions: does the padding of the shorter one count?

Needs torch, transformers and trl from 0.28, and no GPU. The exit code is 3 if the bug is there."""

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
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
args: Any = {"loss_type": "luspo", "num_generations": 2, "per_device_train_batch_size": 2}
args |= {"use_cpu": True, "bf16": False, "report_to": [], "gradient_checkpointing": False}
data: Any = {"train_dataset": Dataset.from_list([{"prompt": "w2"}]), "processing_class": tokenizer}
data |= {"reward_funcs": lambda completions, **_: [0.0] * len(completions)}
trainer: Any = trl.GRPOTrainer(model, args=trl.GRPOConfig(tempfile.mkdtemp(), **args), **data)
trainer.current_gradient_accumulation_steps = 1  # train() sets it
tokens, answers = torch.randint(2, 32, (2, 3)), torch.randint(2, 32, (2, 6))
inputs = {"prompt_ids": tokens, "prompt_mask": torch.ones_like(tokens)}
inputs |= {"completion_mask": torch.tensor([[1] * 6, [1] * 2 + [0] * 4])}
inputs |= {"advantages": torch.tensor([0.0, 1.0])}  # the short one is good
gradients = []
for padding in (5, 6):
    answers[1, 2:] = padding  # behind the mask: it must not matter
    model.train().zero_grad()
    trainer.compute_loss(model, {**inputs, "completion_ids": answers}).backward()
    gradients.append(model.lm_head.weight.grad.clone())
apart = float((gradients[0] - gradients[1]).norm() / gradients[0].norm())
print(f"trl {trl.__version__}: with other padding the gradient is {apart:.2f} of its norm away")
print("WRONG: padding is trained" if apart > 0.01 else "right: padding does not count")
raise SystemExit(3 if apart > 0.01 else 0)
