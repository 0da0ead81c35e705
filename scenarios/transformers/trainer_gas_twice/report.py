"""Train one step on the same 16 rows, with and without gradient accumulation: are updates equal?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there.
"""

import tempfile

import torch
import transformers
from torch.nn.utils import parameters_to_vector

tokens = torch.randint(0, 32, (16, 16), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": row, "labels": row} for row in tokens]
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
quiet = {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "logging_steps": 1}


def update(steps: int) -> tuple[torch.Tensor, float]:
    """What one step of plain SGD adds to the weights, and the logged loss."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    before = parameters_to_vector(model.parameters()).detach().clone()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = {"gradient_accumulation_steps": steps, "per_device_train_batch_size": 16 // steps}
    once = {"max_steps": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "use_cpu": True}
    args = transformers.TrainingArguments(tempfile.mkdtemp(), **batch, **once, **quiet)
    trainer = transformers.Trainer(model, args, train_dataset=rows, optimizers=(sgd, None))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    after = parameters_to_vector(model.parameters()).detach()
    return after - before, trainer.state.log_history[0]["loss"]


print("transformers", transformers.__version__)
updates = {steps: update(steps) for steps in (1, 2, 4, 8)}
for steps, (change, loss) in updates.items():
    size = float(change.norm() / updates[1][0].norm())
    print(f"gradient_accumulation_steps={steps}: {size:.4f} of the right update; loss {loss:.4f}")
print("WRONG: the update depends on the accumulation" if size < 0.99 else "right: all are equal")
raise SystemExit(3 if size < 0.99 else 0)
