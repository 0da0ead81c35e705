"""Export torchtitan's gpt_oss for Hugging Face, and load the export into another model.

Needs torch, torchtitan and triton, and no GPU. The exit code is 3 if the bug is there."""

import torch
from torchtitan.models.gpt_oss import gptoss_configs
from torchtitan.models.gpt_oss.state_dict_adapter import GptOssStateDictAdapter

config = gptoss_configs["debugmodel"](moe_comm_backend="standard", attn_backend="varlen")
config.layers = config.layers[:1]
models = []
for seed in (1, 2):
    torch.manual_seed(seed)
    models.append(config.build())
    with torch.no_grad():
        models[-1].init_states(buffer_device=None)
        for parameter in models[-1].parameters():
            parameter.normal_()
trained, other = models

adapter = GptOssStateDictAdapter(config, None)
export = adapter.to_hf(trained.state_dict())
other.load_state_dict(adapter.from_hf(export), strict=False)  # as torchtitan loads

numbers = sum(value.numel() for value in export.values())
total = sum(parameter.numel() for parameter in trained.parameters())
print(f"the export has {numbers / total:.0%} of the numbers of the model's parameters")
pairs = zip(trained.named_parameters(), other.parameters(), strict=True)
lost = [name for (name, value), loaded in pairs if not torch.equal(value, loaded)]
for name in lost:
    print("not loaded:", name)
print("WRONG: parameters are lost" if lost else "right: all parameters are loaded")
raise SystemExit(3 if lost else 0)
