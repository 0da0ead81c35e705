"""With gradient checkpointing, FLUX ignores the mask that hides the padding of a text.

This affected trainings of diffusers' ``FluxTransformer2DModel``, full or LoRA, that pass
``joint_attention_kwargs`` and save memory by gradient checkpointing, as nearly all do. The
arguments never reach the blocks: an attention mask hides nothing, and the images attend to the
padding of short texts. Inference, which has no gradients and so no checkpointing, uses the mask.
The model is trained in one way and used in another, and no error is raised. The same holds for the
arguments of custom attention processors, such as those of IP-Adapter.

Root cause: the branch of the forward pass that recomputes the blocks lists their arguments by
position, and ends before ``joint_attention_kwargs``. The other branch passes it.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import features

TEXT, IMAGE, WIDTH, CHANNELS = 6, 16, 32, 4
"""Tokens of a text and of an image, and the size of each."""


oracle = features.Feature("with gradient checkpointing the blocks do not get the mask")


def run(ctx: api.Context) -> None:
    """Train on noise and padded texts; compare with the same model without checkpointing, with the
    mask and without it."""
    import torch
    from diffusers import FluxTransformer2DModel

    p = ctx.params
    torch.manual_seed(ctx.seed)
    sizes = {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2}
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=CHANNELS,
        attention_head_dim=WIDTH // 2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=[4, 4, 8],
        **sizes,
    ).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
    mask_of_all = torch.ones(2, 1, 1, TEXT + IMAGE, dtype=torch.bool, device=ctx.device)
    mask_of_all[..., TEXT - p.hidden : TEXT] = False
    for step in api.each(p.steps):
        inputs, target = _inputs(ctx.device), torch.randn(2, IMAGE, CHANNELS, device=ctx.device)

        def loss(mask: Any, inputs: Any = inputs, target: Any = target) -> Any:
            noise = model(**inputs, joint_attention_kwargs={"attention_mask": mask}).sample
            return torch.nn.functional.mse_loss(noise, target)

        model.disable_gradient_checkpointing()
        expected, documented = (
            features.of_losses(model, [loss(mask)]) for mask in (mask_of_all, None)
        )
        if p.checkpointing:
            model.enable_gradient_checkpointing()
        optimizer.zero_grad()
        applied = loss(mask_of_all)
        applied.backward()
        features.record(ctx, step, applied, features.gradients(model), expected, documented)
        optimizer.step()


def _inputs(device: Any) -> dict[str, Any]:
    """Two noisy images, and two texts."""
    import torch

    random = {
        "hidden_states": torch.randn(2, IMAGE, CHANNELS),
        "encoder_hidden_states": torch.randn(2, TEXT, WIDTH),
        "pooled_projections": torch.randn(2, WIDTH),
        "timestep": torch.rand(2),
    }
    places = {"img_ids": torch.zeros(IMAGE, 3), "txt_ids": torch.zeros(TEXT, 3)}
    return {name: value.to(device) for name, value in (random | places).items()}
