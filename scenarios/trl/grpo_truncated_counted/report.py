"""Train one step of GRPO with mask_truncated_completions: which tokens does the loss count?

Needs torch, transformers, datasets and trl, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models

counts: list[tuple[int, int]] = []


class Noting(trl.GRPOTrainer):
    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **settings: Any) -> Any:
        counts.append((int(inputs["completion_mask"].sum()), int(inputs["num_items_in_batch"])))
        return super().compute_loss(model, inputs, *rest, **settings)


torch.manual_seed(0)
words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
special: Any = {"pad_token": "w0", "eos_token": "w1"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
sizes: Any = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
args: Any = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 24}
args |= {"mask_truncated_completions": True, "max_steps": 1, "loss_type": "dapo", "report_to": []}
args |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
data: Any = {"train_dataset": Dataset.from_list([{"prompt": "w2"}] * 8)}
data |= {"reward_funcs": lambda completions, **_: [0.0] * len(completions)}
args = trl.GRPOConfig(tempfile.mkdtemp(), **args)
Noting(model, args=args, processing_class=tokenizer, **data).train()
used, counted = counts[0]
print(f"trl {trl.__version__}: {used} tokens are in the loss, which is divided by {counted}")
print("WRONG: masked tokens count" if counted > used else "right: they do not count")
raise SystemExit(3 if counted > used else 0)
