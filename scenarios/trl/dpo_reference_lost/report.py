"""Train DPO with precomputed reference log-probabilities: is its loss that of a kept reference?

Needs torch, transformers and trl, and no GPU. The exit code is 3 if the bug is there."""

import copy
import tempfile

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
special = {"pad_token": "w0", "eos_token": "w1"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
texts = [{"prompt": f"w{n} w5", "chosen": f" w{n + 9}", "rejected": " w4"} for n in range(5, 13)]
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
settings = {"max_steps": 4, "lr_scheduler_type": "constant", "learning_rate": 0.01}
settings |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "logging_steps": 1}


def losses(precompute: bool) -> list[float]:
    """The loss of each step, with precomputed log-probabilities or with a reference model."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    reference = None if precompute else copy.deepcopy(model)
    flags = {"use_cpu": True, "precompute_ref_log_probs": precompute}
    args = trl.DPOConfig(tempfile.mkdtemp(), **settings, **flags)
    rows = {"train_dataset": Dataset.from_list(texts), "processing_class": tokenizer}
    (trainer := trl.DPOTrainer(model, reference, args=args, **rows)).train()
    return [round(log["loss"], 4) for log in trainer.state.log_history[:-1]]


series, expected = losses(True), losses(False)
print(f"trl {trl.__version__}: losses {series}; right, those with a reference model: {expected}")
lost = all(abs(loss - 0.6931) < 1e-3 for loss in series)
print("WRONG: each is log 2, so the policy is its own reference" if lost else "right: they fall")
raise SystemExit(3 if lost else 0)
