"""Train BERT's classifier for a step of SGD on 8 rows: is the update that of their mean loss?

Needs torch, transformers and accelerate; one rank, or torchrun. Exit code 3: the bug is there.
"""

import os
import tempfile

import torch
import transformers
from torch.nn.utils import parameters_to_vector as flat

ranks = int(os.environ.get("WORLD_SIZE", 1))
tokens = torch.randint(0, 32, (8, 8), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": row, "labels": row.sum() % 4} for row in tokens]
sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 4}
once = {"max_steps": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "use_cpu": True}
once |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True}
once |= {"ddp_backend": "gloo"} if ranks > 1 else {}


def applied(k: int) -> float:
    """How many times the gradient of the mean loss over the 8 rows was applied."""
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, **still))
    loss = model(input_ids=tokens, labels=tokens.sum(1) % 4).loss
    gradient = flat(torch.autograd.grad(loss, list(model.parameters())))
    before = flat(model.parameters()).detach().clone()
    batch = {"gradient_accumulation_steps": k, "per_device_train_batch_size": 8 // k // ranks}
    args = transformers.TrainingArguments(tempfile.mkdtemp(), **batch, **once)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0), None
    transformers.Trainer(model, args, train_dataset=rows, optimizers=sgd).train()
    return float((before - flat(model.parameters()).detach()) @ gradient / (gradient @ gradient))


ratios = [round(applied(k), 4) for k in (1, 2)]
print(f"transformers {transformers.__version__}, ranks: {ranks}; 1 and 2 micro-batches: {ratios}")
print("WRONG: ranks and accumulation multiply it" if ratios[1] > 1.1 else "right: it is the mean's")
raise SystemExit(3 if ratios[1] > 1.1 else 0)
