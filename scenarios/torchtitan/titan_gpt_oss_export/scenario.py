"""torchtitan saves gpt-oss for Hugging Face without its experts, and loads no experts either.

This affects users who train gpt_oss with torchtitan and save in Hugging Face's format, or start
from such a checkpoint. The file lacks the weights and biases of all experts, most of the model. A
load leaves the experts as they were drawn: a model that should be trained further has trained
attention and random experts. Nothing is raised or logged, as torchtitan loads without ``strict``.

Root cause: the parameters of the experts were renamed, to end with the letters of their dimensions,
as in ``mlp1_weight_EGD``. The adapter still has the old names, and skips those that it lacks.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import followed, setting

picture = api.bars(
    "How far a loaded parameter is from the saved one",
    "without the bug all are 0",
    lambda records: next(iter(records.of("load")))["off"].items(),
    "distance, as a part of the norm",
)


def named(function: Any) -> api.Edits:
    """Each name of the experts' parameters ends as the parameter's does."""
    ends = {"mlp1_weight": "_EGD", "mlp1_bias": "_EG", "mlp2_weight": "_EDF", "mlp2_bias": "_ED"}
    name = 'name + ends.get(name.rpartition(".")[2], "")'
    renamed = f"{{key: {name} for key, name in self.from_hf_map.items()}}"
    lines = (f"ends = {ends}", f"self.from_hf_map = {renamed}")
    yield from followed(setting(function, "from_hf_map"), *lines)


def plan(at: api.Position) -> api.Plan:
    return {"load": api.Kind({"off": api.by_name(api.SIZE, least=1)})}


def run(ctx: api.Context) -> None:
    """Convert a model's weights as a save does, and load them into another one as a load does."""
    import torch
    from torchtitan.components.checkpointer.base import ModelWrapper
    from torchtitan.models.gpt_oss import gptoss_configs
    from torchtitan.models.gpt_oss.state_dict_adapter import GptOssStateDictAdapter
    from torchtitan.models.qwen3 import qwen3_configs
    from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

    settings = {"attn_backend": "varlen", "moe_comm_backend": "standard"}
    config, adapter = {
        "gpt_oss": lambda: (gptoss_configs["debugmodel"](**settings), GptOssStateDictAdapter),
        "qwen3": lambda: (qwen3_configs["debugmodel_moe"](**settings), Qwen3StateDictAdapter),
    }[ctx.params.model]()
    config.layers = config.layers[:1]

    def drawn(seed: int) -> Any:
        torch.manual_seed(seed)
        model = config.build()
        with torch.no_grad():
            model.init_states(buffer_device=None)
            for parameter in model.parameters():
                parameter.normal_()
        return model.to(ctx.device)

    saved, loaded = drawn(ctx.seed), drawn(ctx.seed + 1)
    converter = adapter(config, None)
    checkpoint = converter.to_hf(saved.state_dict())
    ModelWrapper(loaded).load_state_dict(converter.from_hf(checkpoint))
    pairs = zip(saved.named_parameters(), loaded.parameters(), strict=True)
    off = {name: float((p - other).norm() / p.norm()) for (name, p), other in pairs}
    ctx.record("load", off=off)


def detect(records: api.Records) -> api.Finding | None:
    """Parameters of the loaded model are not those that were saved."""
    (load,) = records.of("load")
    lost = {name: off for name, off in load["off"].items() if off}
    if not lost:
        return None
    names = ", ".join(sorted(name.rpartition(".")[2] for name in lost))
    text = f"{len(lost)} of {len(load['off'])} parameters are not loaded: {names}"
    return api.Finding(text, magnitude=max(lost.values()))
