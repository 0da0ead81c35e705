"""Train LLaMA for a step of SGD on 16 rows of L tokens: is the gradient that of its own loss?

Needs torch, transformers and accelerate, and no GPU. The exit code is 3 if the bug is there.
"""

import tempfile

import torch
import transformers
from torch.nn.utils import parameters_to_vector as flat

sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
once = {"max_steps": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "use_cpu": True}
once |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True}


def applied(length: int) -> float:
    """How many times the Trainer applied the gradient of the model's mean loss over the rows."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 32, (16, length))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2))
    loss = model(input_ids=tokens, labels=tokens).loss
    gradient = flat(torch.autograd.grad(loss, list(model.parameters())))
    before = flat(model.parameters()).detach().clone()
    folder, sgd = tempfile.mkdtemp(), torch.optim.SGD(model.parameters(), lr=1.0)
    args = transformers.TrainingArguments(folder, per_device_train_batch_size=16, **once)
    transformers.Trainer(model, args, train_dataset=rows, optimizers=(sgd, None)).train()
    return float((before - flat(model.parameters()).detach()) @ gradient / (gradient @ gradient))


print("transformers", transformers.__version__)
ratios = {length: applied(length) for length in (4, 8, 16)}
for length, times in ratios.items():
    print(f"{length} tokens: {times:.4f} times the right gradient; 1 - 1 / L: {1 - 1 / length:.4f}")
bug = abs(ratios[4] - 0.75) < 0.01
print("WRONG: divided by L labels, not the L - 1 predicted" if bug else "right: once each")
raise SystemExit(3 if bug else 0)
