"""Train LLaMA with label smoothing on 8 rows, in 1, 2 or 4 micro-batches: are updates right?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import tempfile

import torch
import transformers
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector as flat

tokens = torch.randint(0, 32, (8, 8), generator=torch.Generator().manual_seed(0))
labels = tokens.clone()
labels[:, 0] = -100  # never predicted; some releases count it
rows = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
once = {"max_steps": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "use_cpu": True}
once |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True}


def applied(steps: int) -> float:
    """How many times one step of SGD applied the gradient that plain torch finds for its rows."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    logits = model(tokens).logits[:, :-1].flatten(0, 1)
    loss = cross_entropy(logits, tokens[:, 1:].flatten(), label_smoothing=0.1)
    gradient = flat(torch.autograd.grad(loss, list(model.parameters())))
    before = flat(model.parameters()).detach().clone()
    batch = {"gradient_accumulation_steps": steps, "per_device_train_batch_size": 8 // steps}
    smooth = {"label_smoothing_factor": 0.1}
    args = transformers.TrainingArguments(tempfile.mkdtemp(), **smooth, **batch, **once)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0), None
    transformers.Trainer(model, args, train_dataset=rows, optimizers=sgd).train()
    return float((before - flat(model.parameters()).detach()) @ gradient / (gradient @ gradient))


ratios = {steps: round(applied(steps), 4) for steps in (1, 2, 4)}
print(f"transformers {transformers.__version__}; times the right gradient for 1, 2, 4: {ratios}")
print("WRONG: accumulation multiplies it" if ratios[4] > 3.9 else "right: each is 1")
raise SystemExit(3 if ratios[4] > 3.9 else 0)
