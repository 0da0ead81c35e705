"""Train LLaMA for a step of SGD on 8 rows, in 1, 2 or 4 micro-batches: are the updates equal?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there.
"""

import tempfile

import torch
import transformers
from torch.nn.utils import parameters_to_vector as flat

tokens = torch.randint(0, 32, (8, 16), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": row, "labels": row} for row in tokens]
sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
once = {"max_steps": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "use_cpu": True}
once |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "logging_steps": 1}


def update(steps: int) -> tuple[torch.Tensor, float]:
    """What one step adds to the weights, and the logged loss."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    before = flat(model.parameters()).detach().clone()
    batch = {"gradient_accumulation_steps": steps, "per_device_train_batch_size": 8 // steps}
    args = transformers.TrainingArguments(tempfile.mkdtemp(), **batch, **once)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = transformers.Trainer(model, args, train_dataset=rows, optimizers=(sgd, None))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return flat(model.parameters()).detach() - before, trainer.state.log_history[0]["loss"]


print("transformers", transformers.__version__)
updates = {steps: update(steps) for steps in (1, 2, 4)}
for steps, (change, loss) in updates.items():
    times = float(change.norm() / updates[1][0].norm())
    print(f"gradient_accumulation_steps={steps}: {times:.4f} of the right update; loss {loss:.4f}")
print("WRONG: accumulation multiplies the update" if times > 3.9 else "right: all are equal")
raise SystemExit(3 if times > 3.9 else 0)
