"""Train DPO for a step of SGD on 8 preferences, in 1, 2 or 4 micro-batches: are updates equal?

Needs torch, transformers and trl, and no GPU. The exit code is 3 if the bug is there."""

import tempfile

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.utils import parameters_to_vector as flat

words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
special = {"pad_token": "w0", "eos_token": "w1"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
texts = [{"prompt": f"w{n} w5", "chosen": f" w{n + 9}", "rejected": " w4"} for n in range(5, 13)]
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
once = {"max_steps": 1, "max_grad_norm": 0.0, "optim": "sgd", "learning_rate": 0.1}
once |= {"lr_scheduler_type": "constant", "use_cpu": True, "save_strategy": "no", "report_to": []}


def update(steps: int) -> torch.Tensor:
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2)
    torch.manual_seed(0)
    policy, reference = (transformers.LlamaForCausalLM(config) for _ in range(2))
    before = flat(policy.parameters()).detach().clone()
    batch = {"gradient_accumulation_steps": steps, "per_device_train_batch_size": 8 // steps}
    args = trl.DPOConfig(tempfile.mkdtemp(), **batch, **once)
    rows = {"train_dataset": Dataset.from_list(texts), "processing_class": tokenizer}
    trl.DPOTrainer(policy, reference, args=args, **rows).train()
    return flat(policy.parameters()).detach() - before


norms = [float(update(steps).norm()) for steps in (1, 2, 4)]
times = [round(norm / norms[0], 4) for norm in norms]
print(f"trl {trl.__version__}, transformers {transformers.__version__}; times the first: {times}")
print("WRONG: accumulation multiplies them" if times[2] > 3.9 else "right: all are equal")
raise SystemExit(3 if times[2] > 3.9 else 0)
