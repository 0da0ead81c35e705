"""Put LoRA on layer 1 of a mixture of experts: are the adapters those of layer 1?

Needs torch and peft, and no GPU. The exit code is 3 if the bug is there."""

import peft
from torch import nn


def layer() -> nn.ModuleDict:
    """Two experts, with the names that Qwen2-MoE's have."""
    experts = [nn.ModuleDict({"up_proj": nn.Linear(4, 4)}) for _ in range(2)]
    return nn.ModuleDict({"mlp": nn.ModuleDict({"experts": nn.ModuleList(experts)})})


layers = nn.ModuleList(layer() for _ in range(3))
model = nn.ModuleDict({"model": nn.ModuleDict({"layers": layers})})
config = peft.LoraConfig(target_modules=["up_proj"], layers_to_transform=[1])
adapted = [
    name.removeprefix("base_model.model.").removesuffix(".lora_B.default.weight")
    for name, _ in peft.get_peft_model(model, config).named_parameters()
    if "lora_B" in name
]
print(f"peft {peft.__version__}, layers_to_transform=[1]:", *adapted, sep="\n  ")
bug = any("layers.1." not in name for name in adapted)
print("WRONG: other layers have adapters" if bug else "right: only layer 1 has adapters")
raise SystemExit(3 if bug else 0)
