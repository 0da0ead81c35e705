"""Make timm's optimizer with layer decay for a ViT with registers: in which group is each token?

Needs torch and timm, and no GPU. The exit code is 3 if the bug is there."""

import timm
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2

model = VisionTransformer(
    img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, reg_tokens=2
)
optimizer = create_optimizer_v2(model, opt="momentum", lr=0.1, weight_decay=0.05, layer_decay=0.5)
groups = {}
for name, parameter in model.named_parameters():
    for group in optimizer.param_groups:
        if any(member is parameter for member in group["params"]):
            groups[name] = (group["lr_scale"], group["weight_decay"])
for name in ("cls_token", "pos_embed", "reg_token", "head.weight"):
    scale, decay = groups[name]
    print(f"timm {timm.__version__}: {name} has {scale:g} of the rate, and weight decay {decay:g}")
wrong = groups["reg_token"] != groups["cls_token"]
print("WRONG: reg_token is not like cls_token" if wrong else "right: the tokens are alike")
raise SystemExit(3 if wrong else 0)
