"""Train LLaMA for a step on 8 rows of 1 to 15 labels, in 1, 2, 4 parts: are the updates equal?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there.
"""

import tempfile

import torch
import transformers
from torch.nn.utils import parameters_to_vector as flat

tokens = torch.randint(0, 32, (8, 16), generator=torch.Generator().manual_seed(0))
labels = tokens.clone()
labels[:, 0] = -100  # never predicted; some releases count it
for number, label in enumerate(labels):
    label[2 + number * 5 % 8 * 2 :] = -100  # as a data collator does with padding
rows = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
once = {"max_steps": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "use_cpu": True}
once |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True}


def compared(steps: int) -> float:
    """By how much one step of SGD differs from the gradient of the mean over all labels."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    loss = model(input_ids=tokens, labels=labels).loss
    gradient = flat(torch.autograd.grad(loss, list(model.parameters())))
    before = flat(model.parameters()).detach().clone()
    batch = {"gradient_accumulation_steps": steps, "per_device_train_batch_size": 8 // steps}
    args = transformers.TrainingArguments(tempfile.mkdtemp(), **batch, **once)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0), None
    transformers.Trainer(model, args, train_dataset=rows, optimizers=sgd).train()
    return float((before - flat(model.parameters()).detach() - gradient).norm() / gradient.norm())


off = {steps: round(compared(steps), 4) for steps in (1, 2, 4)}
print(f"transformers {transformers.__version__}: relative error of the update for 1, 2, 4: {off}")
print("WRONG: it averages the parts' means" if off[4] > 0.05 else "right: tokens count equally")
raise SystemExit(3 if off[4] > 0.05 else 0)
