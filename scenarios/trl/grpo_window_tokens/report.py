"""Train GRPO on completions of 6 tokens each: are the updates of loss types dapo and grpo equal?

Needs torch, transformers and trl, and no GPU. The exit code is 3 if the bug is there."""

import tempfile

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
special = {"pad_token": "w0", "eos_token": "w1", "model_input_names": ["input_ids"]}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
rows = Dataset.from_list([{"prompt": f"w{n} w{n + 1}"} for n in range(2, 31)])
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
once = {"max_steps": 1, "max_grad_norm": 0.0, "optim": "sgd", "learning_rate": 0.1, "use_cpu": True}
once |= {"per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 6}
once |= {"generation_kwargs": {"suppress_tokens": [0, 1, 2]}, "bf16": False, "report_to": []}


def update(loss_type: str, generation: int, k: int) -> torch.Tensor:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    before = model.lm_head.weight.detach().clone()
    steps = {"steps_per_generation": generation, "gradient_accumulation_steps": k}
    args = trl.GRPOConfig(tempfile.mkdtemp(), loss_type=loss_type, **steps, **once)
    data = {"args": args, "train_dataset": rows, "processing_class": tokenizer}
    data |= {"reward_funcs": lambda completion_ids, **_: [float(ids[0]) for ids in completion_ids]}
    trl.GRPOTrainer(model, **data).train()
    return model.lm_head.weight.detach() - before  # what the step added


for n, k in ((2, 2), (2, 4), (4, 2)):
    times = float(update("dapo", n, k).norm() / update("grpo", n, k).norm())
    print(f"trl {trl.__version__}, generation {n}, accumulation {k}: {times:.4f} times; right: 1")
print("WRONG: dapo divides by the tokens of the generation" if times < 0.51 else "right: equal")
raise SystemExit(3 if times < 0.51 else 0)
