"""Score an answer with trl's OnlineDPOTrainer, with and without padding before its prompt.

Needs torch, transformers, datasets and trl, and no GPU. The exit code is 3 if the bug is there."""

import tempfile
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
special: Any = {"pad_token": "w0", "eos_token": "w1"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
sizes: Any = {"vocab_size": 32, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
settings: Any = {"use_cpu": True, "bf16": False, "report_to": []}
trainer: Any = OnlineDPOTrainer(
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)),
    reward_funcs=lambda completions, **_: [0.0] * len(completions),
    args=OnlineDPOConfig(tempfile.mkdtemp(), **settings),
    train_dataset=Dataset.from_list([{"prompt": "w2"}]),
    processing_class=tokenizer,
)
trainer.model.eval().transformer.wpe.weight.data.normal_()  # as large as after a training
answer = torch.tensor([[5, 6, 7]])
scores = {}
for padding in (0, 4):
    prompt = torch.tensor([[0] * padding + [2, 3, 4]])
    mask = torch.tensor([[0] * padding + [1] * 3])
    inputs = (prompt, mask, answer, torch.ones_like(answer))
    with torch.no_grad():
        scores[padding] = float(trainer._forward(trainer.model, *inputs).sum())
        print(f"trl {trl.__version__}: {padding} tokens of padding: {scores[padding]:.4f} nats")
wrong = abs(scores[0] - scores[4]) > 1e-3
print("WRONG: padding changes the score" if wrong else "right: the same score")
raise SystemExit(3 if wrong else 0)
