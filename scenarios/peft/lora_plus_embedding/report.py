"""Train an adapter of an embedding with LoRA+: does loraplus_lr_embedding set its rate?

Needs torch and peft, and no GPU. The exit code is 3 if the bug is there."""

import peft
import torch
from peft.optimizers import create_loraplus_optimizer
from torch import nn

RATE, RATIO, EMBEDDING = 0.05, 4.0, 0.5
RIGHT = {
    "lora_A": RATE,
    "lora_B": RATIO * RATE,
    "lora_embedding_A": EMBEDDING,
    "lora_embedding_B": EMBEDDING,
}

torch.manual_seed(0)
base = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 4))
config = peft.LoraConfig(r=4, target_modules=["0", "1"], init_lora_weights=False)  # not 0
model = peft.get_peft_model(base, config)
rates = {"lr": RATE, "loraplus_lr_ratio": RATIO, "loraplus_lr_embedding": EMBEDDING}
sgd = create_loraplus_optimizer(model, torch.optim.SGD, **rates)
trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
before = {name: weight.detach().clone() for name, weight in trained.items()}
model(torch.arange(16)).square().sum().backward()
sgd.step()

print("peft", peft.__version__)
has_bug = False
for name, weight in trained.items():
    rate = float((weight.detach() - before[name]).norm() / weight.grad.norm())
    expected = next(RIGHT[part] for part in name.split(".") if part in RIGHT)
    print(f"{name}: the rate is {rate:.4g}, and {expected:.4g} is right")
    has_bug |= "embedding" in name and abs(rate / expected - 1) > 0.01
print("WRONG: the embedding has another rate" if has_bug else "right: each has its own rate")
raise SystemExit(3 if has_bug else 0)
