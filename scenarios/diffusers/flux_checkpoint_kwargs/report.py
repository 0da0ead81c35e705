"""Hide the padding of a text from a tiny FLUX: does gradient checkpointing change the loss?

Needs torch and diffusers, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import diffusers
import torch

torch.manual_seed(0)
sizes: Any = {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1}
sizes |= {"attention_head_dim": 16, "num_attention_heads": 2, "axes_dims_rope": [4, 4, 8]}
sizes |= {"joint_attention_dim": 32, "pooled_projection_dim": 32}
model = diffusers.FluxTransformer2DModel(**sizes)
inputs: Any = {"img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3)}
inputs |= {"hidden_states": torch.randn(2, 16, 4), "timestep": torch.tensor([0.5, 0.5])}
inputs |= {"encoder_hidden_states": torch.randn(2, 6, 32), "pooled_projections": torch.randn(2, 32)}
mask = torch.ones(2, 1, 1, 22, dtype=torch.bool)
mask[..., 3:6] = False  # the last 3 of 6 tokens of the texts are padding


def loss(name: str, seen: Any) -> Any:
    noise = model(**inputs, joint_attention_kwargs={"attention_mask": seen}).sample
    value = noise.square().mean()
    print(f"diffusers {diffusers.__version__}, {name}: the loss is {value:.6f}")
    return value


loss("without the mask", None)
masked = loss("with the mask", mask)
model.enable_gradient_checkpointing()
is_wrong = not loss("with the mask and checkpointing", mask).isclose(masked, rtol=1e-5)
print("WRONG: the mask is ignored" if is_wrong else "right: the mask is used")
raise SystemExit(3 if is_wrong else 0)
